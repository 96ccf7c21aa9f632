"""Destinations: set, read, list. What decides over a message is read in the transaction that decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgspec

from app.access import Caller, Principal
from app.db.tx import Tx
from app.errors import Refusal, not_found
from app.primitives.audit.ops import Entry, record
from app.primitives.outbox.model.destinations import Destination, Mode
from app.primitives.outbox.ops import secrets
from app.primitives.outbox.ops.refusals import out_of_pattern
from app.primitives.outbox.store import flows as store

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Put:
    """All that can be set of a destination. `audit_id`: the identity of its audit entry. `signing_secret` None: as it is.
    `overlap`: for how many microseconds one that is replaced signs on.
    """

    destination: Destination
    caller: Caller
    audit_id: bytes
    headers: dict[str, str] = field(default_factory=dict)
    signing_secret: str | None = None
    overlap: int = 0


@dataclass(frozen=True, slots=True)
class Get:
    name: str
    principal: Principal


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of the destinations that the key's patterns allow, by name, from the one after `after` on."""

    principal: Principal
    limit: int = 50
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A destination as it is on disk. `signed`: it has a signing secret. `replayed`: it was so before."""

    destination: Destination
    created_at: int
    updated_at: int
    signed: bool = False
    created: bool = False
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """A destination that the service delivers to. `sealed`: its secrets, for whoever has the vault."""

    destination: Destination
    sealed: bytes | None


@lru_cache(maxsize=4096)
def _decoded(config: bytes) -> Destination:
    return msgspec.json.decode(config, type=Destination)


def read(tx: Tx, names: Iterable[str]) -> dict[str, Destination]:
    """Those of these destinations that are there. One statement, none for no name."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    return {row.name: _decoded(bytes(row.config)) for row in store.select_destinations(tx, wanted) if row.config}


def max_attempts(tx: Tx, row: Any, destination: Destination | None) -> int:
    """After how many attempts this message ends: as recorded, else by its destination now, else by the settings."""
    own = row.max_attempts
    if own is None and destination is not None:
        own = destination.max_attempts
    return int(tx.host.settings.outbox_max_attempts if own is None else own)


def put(tx: Tx, commands: Sequence[Put]) -> list[Stored | Refusal]:
    """Set a destination, making it if it is not there; in force with the commit for every decision that begins after it.

    Guarantee: repeatable; the same content changes nothing (`replayed`). What is on its way keeps its reservation. Secrets are
    stored sealed. Raises: as values `validation_failed` where nothing can be sealed, `state_conflict` where what is stored
    cannot be opened.
    """
    return [_put(tx, command) for command in commands]


def _put(tx: Tx, command: Put) -> Stored | Refusal:
    wanted, config = command.destination, _encode(command.destination)
    created = not store.select_destinations(tx, [wanted.name])
    if created:  # an empty config is none yet: two makers find each other's
        fresh = {"name": wanted.name, "config": b"", "created_at": tx.now, "updated_at": tx.now}
        store.insert_missing_destination(tx, fresh)
    row = store.lock_destination(tx, wanted.name)
    created = created and not row.config
    told = secrets.changed(tx, row, wanted.name, command.headers, command.signing_secret, command.overlap)
    if isinstance(told, Refusal):
        return told
    before, after = told
    if bytes(row.config) == config and before == after:
        return _stored(row, signed=bool(after.signing), replayed=not tx.memo.get(("put", command.audit_id)))
    sealed = secrets.sealed(tx, wanted.name, after)
    if isinstance(sealed, Refusal):
        if created:
            store.delete_destination(tx, wanted.name)
        return sealed
    tx.memo["put", command.audit_id] = True
    store.update_destination(tx, wanted.name, {"config": config, "sealed": sealed, "updated_at": tx.now})
    _audit(tx, command)
    return replace(_stored(store.lock_destination(tx, wanted.name), signed=bool(after.signing)), created=created)


def _audit(tx: Tx, command: Put) -> None:
    wanted = command.destination
    details = {
        "mode": wanted.delivery.mode,
        "idempotent": wanted.idempotent,
        "on_lease_loss": wanted.on_lease_loss,
        "new_signing_secret": command.signing_secret is not None,
    }
    entry = Entry(
        id=command.audit_id, by=command.caller.principal, action="outbox.put_destination", kind="destination",
        target=wanted.name, request_id=command.caller.request_id, details=details,
    )  # fmt: skip
    record(tx, [entry])


def every(tx: Tx) -> list[Destination]:
    """All destinations; a small table."""
    return [_decoded(bytes(row.config)) for row in store.select_page(tx, None, None) if row.config]


def served(tx: Tx, _command: None) -> list[Served]:
    """The destinations that the service itself delivers to, with their secrets as they are stored."""
    found = [(_decoded(bytes(row.config)), row.sealed) for row in store.select_page(tx, None, None) if row.config]
    return [
        Served(one, None if sealed is None else bytes(sealed))
        for one, sealed in found
        if one.delivery.mode is Mode.HTTP
    ]


def get(tx: Tx, command: Get) -> Stored | Refusal:
    """Raises: as values `not_found`, `forbidden`."""
    if not command.principal.allows(command.name):
        return out_of_pattern()
    rows = store.select_destinations(tx, [command.name])
    return _readable(tx, rows[0]) if rows else not_found("destination")


def list_destinations(tx: Tx, command: Listing) -> list[Stored]:
    """One destination more than the limit if there is one, by name."""
    allows, most = command.principal.allows, command.limit + 1
    rows = store.select_page(tx, command.after, None if command.principal.patterns else most)
    return [_readable(tx, row) for row in rows if allows(row.name)][:most]


def _stored(row: Any, *, signed: bool = False, replayed: bool = False) -> Stored:
    return Stored(_decoded(bytes(row.config)), row.created_at, row.updated_at, signed, replayed=replayed)


def _readable(tx: Tx, row: Any) -> Stored:
    """As it is told; that its secrets cannot be opened is none of the reader's business."""
    try:
        known = secrets.opened(tx.host.state("vault"), row.name, row.sealed)
    except secrets.UNREADABLE:
        return _stored(row, signed=True)
    return _stored(row, signed=bool(known.signing))
