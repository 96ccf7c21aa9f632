"""The verbs of API keys: create, revoke, list, and what the directory of each process needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.access import Role
from app.db.tx import Tx
from app.errors import VALIDATION_FAILED, FieldError, Refusal, not_found
from app.primitives.audit.ops import Entry, record
from app.primitives.keys import store
from app.primitives.keys.model import ApiKey, Create, Revoke, Revoked


def create(tx: Tx, commands: Sequence[Create]) -> Sequence[ApiKey | Refusal]:
    """Store new keys.

    Guarantee: run again, it gives the same keys. Race: none; ids are random.
    Outcomes: Refusal `validation_failed` for a first key without the role `admin`: nobody could make another.
    """
    outcomes: list[ApiKey | Refusal] = []
    for command in commands:
        if Role.ADMIN not in command.roles and not store.has_any_key(tx):
            faults = (FieldError("#/roles", "must hold `admin` for the first key"),)
            outcomes.append(Refusal(VALIDATION_FAILED, "The first key must be able to make others.", errors=faults))
            continue
        store.insert_key(tx, command)
        key = store.select_key(tx, command.id)
        if key is None:
            raise RuntimeError("a key vanished while it was made")
        details = {"name": key.name, "roles": key.roles, "patterns": key.patterns}
        record(
            tx,
            [
                Entry(
                    command.by,
                    "api_keys.create",
                    "api_key",
                    key.id,
                    request_id=command.request_id,
                    details=details,
                    id=command.audit_id,
                )
            ],
        )
        outcomes.append(key)
    return outcomes


def revoke(tx: Tx, commands: Sequence[Revoke]) -> Sequence[Revoked | Refusal]:
    """Revoke keys for good; one that is revoked already is given as it is, `replayed`.

    Race: of two revocations one writes; both see the key revoked.
    """
    outcomes: list[Revoked | Refusal] = []
    for command in commands:
        changed = store.revoke_key(tx, command.id)
        key = store.select_key(tx, command.id)
        if key is None:
            outcomes.append(not_found("API key"))
            continue
        if changed:
            details = {"name": key.name}
            record(
                tx,
                [
                    Entry(
                        command.by,
                        "api_keys.revoke",
                        "api_key",
                        key.id,
                        request_id=command.request_id,
                        details=details,
                        id=command.audit_id,
                    )
                ],
            )
        outcomes.append(Revoked(key, replayed=not changed))
    return outcomes


def touch(tx: Tx, commands: Sequence[Mapping[str, int]]) -> Sequence[None]:
    """Note when keys were last used: (key id -> microseconds)."""
    merged: dict[str, int] = {}
    for used in commands:
        for key_id, moment in used.items():
            merged[key_id] = max(moment, merged.get(key_id, 0))
    store.touch_keys(tx, merged)
    return [None] * len(commands)


def list_keys(tx: Tx, command: tuple[int, tuple[int, str] | None]) -> Sequence[ApiKey]:
    """(limit, place): at most one key more than the limit, newest first."""
    return store.select_page(tx, *command)


def all_keys(tx: Tx, _command: None) -> Sequence[ApiKey]:
    """Every key, revoked ones too."""
    return store.select_all(tx)
