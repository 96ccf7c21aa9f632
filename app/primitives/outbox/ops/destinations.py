"""Destinations: set, read, list. What decides over a message is read in the transaction that decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec

from app.access import Caller, Principal
from app.db.tx import Tx
from app.errors import Refusal, not_found
from app.primitives.audit.ops import Entry, record
from app.primitives.outbox.model.destinations import Destination
from app.primitives.outbox.ops.refusals import out_of_pattern
from app.primitives.outbox.store import flows as store

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Put:
    """All that can be set of a destination. `audit_id`: the identity of its audit entry."""

    destination: Destination
    caller: Caller
    audit_id: bytes


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
    """A destination as it is on disk. `replayed`: it was so before."""

    destination: Destination
    created_at: int
    updated_at: int
    created: bool = False
    replayed: bool = False


@lru_cache(maxsize=4096)
def _decoded(config: bytes) -> Destination:
    return msgspec.json.decode(config, type=Destination)


def read(tx: Tx, names: Iterable[str]) -> dict[str, Destination]:
    """Those of these destinations that are there. One statement, none for no name."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    return {row.name: _decoded(bytes(row.config)) for row in store.select_destinations(tx, wanted)}


def max_attempts(tx: Tx, row: Any, destination: Destination | None) -> int:
    """After how many attempts this message ends: as recorded, else by its destination now, else by the settings."""
    own = row.max_attempts
    if own is None and destination is not None:
        own = destination.max_attempts
    return int(tx.host.settings.outbox_max_attempts if own is None else own)


def put(tx: Tx, commands: Sequence[Put]) -> list[Stored]:
    """Set a destination, making it if it is not there; in force with the commit for every decision that begins after it.

    Guarantee: repeatable; the same content changes nothing (`replayed`). What is on its way keeps its reservation.
    """
    return [_put(tx, command) for command in commands]


def _put(tx: Tx, command: Put) -> Stored:
    wanted, config = command.destination, _encode(command.destination)
    fresh = {"name": wanted.name, "config": config, "created_at": tx.now, "updated_at": tx.now}
    created = not store.select_destinations(tx, [wanted.name])
    if created:
        store.insert_missing_destination(tx, fresh)
    row = store.lock_destination(tx, wanted.name)
    if bytes(row.config) == config and not created:
        return _stored(row, replayed=not (tx.repeated and tx.memo.get(("put", wanted.name)) == config))
    tx.memo["put", wanted.name] = config
    if not created:
        store.update_destination(tx, wanted.name, {"config": config, "updated_at": tx.now})
    record(
        tx,
        [
            Entry(
                id=command.audit_id,
                by=command.caller.principal,
                action="outbox.put_destination",
                kind="destination",
                target=wanted.name,
                request_id=command.caller.request_id,
                details={
                    "mode": wanted.delivery.mode,
                    "idempotent": wanted.idempotent,
                    "on_lease_loss": wanted.on_lease_loss,
                },
            )
        ],
    )
    return replace(_stored(store.lock_destination(tx, wanted.name)), created=created)


def get(tx: Tx, command: Get) -> Stored | Refusal:
    """Raises: as values `not_found`, `forbidden`."""
    if not command.principal.allows(command.name):
        return out_of_pattern()
    rows = store.select_destinations(tx, [command.name])
    return _stored(rows[0]) if rows else not_found("destination")


def list_destinations(tx: Tx, command: Listing) -> list[Stored]:
    """One destination more than the limit if there is one, by name."""
    allows, most = command.principal.allows, command.limit + 1
    rows = store.select_page(tx, command.after, None if command.principal.patterns else most)
    return [_stored(row) for row in rows if allows(row.name)][:most]


def _stored(row: Any, *, replayed: bool = False) -> Stored:
    return Stored(_decoded(bytes(row.config)), row.created_at, row.updated_at, replayed=replayed)
