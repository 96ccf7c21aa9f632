"""Put, get, list and check. A contract that breaks rules is stored all the same: what becomes of it decides the enqueue."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.access import Principal
from app.db.tx import Tx
from app.errors import FORBIDDEN, VALIDATION_FAILED, FieldError, Refusal, not_found
from app.jsontext import parse
from app.primitives.audit.ops import Entry, record
from app.primitives.contracts import store
from app.primitives.contracts.model.contract import Contract
from app.primitives.contracts.model.effective import Defaults
from app.primitives.contracts.model.judging import Judgement, judge
from app.primitives.contracts.model.manifest import Ledger, Manifest
from app.primitives.contracts.model.review import Review, review
from app.primitives.contracts.model.terms import handler_of, terms_of
from app.primitives.jobs.ops import terms

DOCUMENT_BYTES = 8 * 1024 * 1024  # no limit for what was taken once


@dataclass(frozen=True, slots=True)
class Put:
    """Register a contract. `put_id` and `audit_id` were made before the first try."""

    type: str
    schema_version: int
    contract: Contract
    by: Principal
    request_id: str
    put_id: bytes
    audit_id: bytes


@dataclass(frozen=True, slots=True)
class Get:
    type: str
    schema_version: int
    principal: Principal


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of the contracts that the key's patterns allow, from the one after `after` on."""

    principal: Principal
    limit: int = 50
    after: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Check:
    manifest: Manifest
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Stored:
    """A contract as it is kept, and what the rules say of it now. Moments in microseconds."""

    type: str
    schema_version: int
    contract: Contract
    judgement: Judgement
    created_at: int
    created_by: str
    updated_at: int
    updated_by: str
    created: bool = False
    replayed: bool = False


def put(tx: Tx, commands: Sequence[Put]) -> list[Stored | Refusal]:
    """Register contracts, together with the terms that jobs decide by.

    Guarantee: contract, terms and audit entry are committed together; the same content again changes nothing (`replayed`).
    After a lost COMMIT answer the second try gives the first one's answer: the row tells whose write is the newest.
    Race: of two at once the later commit stands whole. Outcomes: Refusal `validation_failed` for a payload schema that does
    not compile, a handler that cannot be used, and reasons that are none.
    """
    outcomes: dict[int, Stored | Refusal] = {}
    # in one order everywhere, so that two units that write several contracts wait for each other and never in a ring
    order = sorted(range(len(commands)), key=lambda index: (commands[index].type, commands[index].schema_version))
    for index in order:
        command = commands[index]
        faults = (*unusable(command.contract), *command.contract.poor_reasons())
        if faults:
            outcomes[index] = Refusal(VALIDATION_FAILED, "The contract is not valid.", errors=faults)
        else:
            outcomes[index] = _put(tx, command)
    return [outcomes[index] for index in range(len(commands))]


def unusable(contract: Contract) -> Iterator[FieldError]:
    """What is well formed and yet cannot be carried out."""
    if contract.payload_schema is not None and (fault := terms.check_schema(contract.payload_schema)) is not None:
        yield FieldError("#/payload_schema", fault)
    handler = handler_of(contract.terminal_handler)
    if handler is not None and (fault := terms.can_handle(handler)) is not None:
        yield FieldError("#/terminal_handler", fault)


def _put(tx: Tx, command: Put) -> Stored:
    document = command.contract.document()
    digest = hashlib.sha256(document).digest()
    changes = {
        "document": document,
        "digest": digest,
        "put_id": command.put_id,
        "updated_at": tx.now,
        "updated_by": command.by.key_id,
    }
    key = {"type": command.type, "schema_version": command.schema_version}
    store.insert_contract(tx, {**key, **changes, "created_at": tx.now, "created_by": command.by.key_id})
    row = store.lock_contract(tx, command.type, command.schema_version)
    ours = bytes(row.put_id) == command.put_id  # just inserted, or written by a try whose COMMIT got no answer
    if not ours and bytes(row.digest) == digest:
        return _stored(tx, row, replayed=True)
    created = ours and row.created_at == row.updated_at
    if not ours:
        store.update_contract(tx, command.type, command.schema_version, changes)
        row = store.lock_contract(tx, command.type, command.schema_version)
    stored = _stored(tx, row, created=created)
    terms.put(tx, terms_of(stored.contract, command.type, command.schema_version, stored.judgement))
    _audit(tx, command, stored, digest)
    return stored


def _audit(tx: Tx, command: Put, stored: Stored, digest: bytes) -> None:
    details = {
        "created": stored.created,
        "sha256": digest.hex(),
        "violations": [one.rule for one in stored.judgement.violations],
        "exempted": [one.finding.rule for one in stored.judgement.exempted],
    }
    target = f"{command.type}@{command.schema_version}"
    entry = Entry(
        command.by, "contracts.put", "contract", target, None, command.request_id, details, id=command.audit_id
    )
    record(tx, [entry])


def get(tx: Tx, command: Get) -> Stored | Refusal:
    """One contract, judged now. Outcomes: Refusal `not_found`, `forbidden`."""
    if not command.principal.allows(command.type):
        return Refusal(FORBIDDEN, "This key's name patterns do not cover the type.", {"reason": "name_pattern"})
    row = store.select_contract(tx, command.type, command.schema_version)
    return not_found("contract") if row is None else _stored(tx, row)


def list_contracts(tx: Tx, command: Listing) -> list[Stored]:
    """One contract more than the limit if there is one, by type and version, each judged now."""
    allows, most = command.principal.allows, command.limit + 1
    rows = store.select_contracts(tx, command.after, None if command.principal.patterns else most)
    return [_stored(tx, row) for row in [row for row in rows if allows(row.type)][:most]]


def check(tx: Tx, command: Check) -> Review | Refusal:
    """Judge a manifest by the database's time; stores nothing.

    Outcomes: Refusal `validation_failed` for what PUT would refuse, but for reasons that are none: those are findings.
    """
    faults = tuple(
        FieldError(f"#/manifest/contracts/{index}{fault.pointer[1:]}", fault.detail)
        for index, one in enumerate(command.manifest.contracts)
        for fault in unusable(one)
    )
    if faults:
        return Refusal(VALIDATION_FAILED, "The manifest is not valid.", errors=faults[:50])
    return review(command.manifest, command.ledger, Defaults.of(tx.host.settings), tx.now)


def _stored(tx: Tx, row: Any, *, created: bool = False, replayed: bool = False) -> Stored:
    contract = parse(Contract, bytes(row.document), max_value_bytes=DOCUMENT_BYTES)
    judgement = judge(contract, row.type, row.schema_version, Defaults.of(tx.host.settings), tx.now)
    return Stored(
        type=row.type,
        schema_version=row.schema_version,
        contract=contract,
        judgement=judgement,
        created_at=row.created_at,
        created_by=row.created_by,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
        created=created,
        replayed=replayed,
    )


def every(tx: Tx) -> list[Stored]:
    """All contracts, by type and version."""
    return [_stored(tx, row) for row in store.select_contracts(tx, None, None)]
