"""Sweeps: what the service itself must do with messages in time. Each is one batch, safe on every replica at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app import reservations
from app.db.tx import Tx
from app.primitives.outbox.model.commands import Claimed
from app.primitives.outbox.model.destinations import Destination
from app.primitives.outbox.model.states import ENDED, State
from app.primitives.outbox.ops import destinations, flows, lines, moves
from app.primitives.outbox.store import due, held

BATCH = 200


@dataclass(frozen=True, slots=True)
class Batch:
    """One round of a sweep. Outcome: how many rows it changed; `most` of them means that there is more."""

    most: int = BATCH


def promote(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """Messages whose time has come, or whose backoff is over, can be claimed."""
    rows = due.lock_due(tx, State.DELAYED, commands[0].most)
    if rows:
        due.update_promoted(tx, [bytes(row.id) for row in rows])
        memory, names = flows.here(tx), flows.Names(tx)
        ready = Counter(names[row.flow_id] for row in rows)
        tx.on_commit(lambda: memory.wake(ready))
    return [len(rows), *(0 for _ in commands[1:])]


def abandon(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """sending -> unknown, or again by the destination's backoff, for messages whose lease has ended.

    Race: a settlement that commits first has changed state or fence; the write then matches nothing for that row.
    """
    rows = due.lock_due(tx, State.SENDING, commands[0].most)
    if rows:
        give_up(tx, rows)
    return [len(rows), *(0 for _ in commands[1:])]


def give_up(tx: Tx, rows: Sequence[Any]) -> None:
    """The same for these messages, whose rows are locked and whose leases have ended."""
    of = destinations_of(tx, rows)
    moved = [moves.abandoned(tx, row, of[row.flow_id]) for row in rows]
    written = held.update_abandoned(tx, [move.change for move in moved])
    if written != len(moved):
        # a server that does not hold its locks: keep to what was written
        sending = held.select_sending(tx, [bytes(row.id) for row in rows])
        moved = [move for move in moved if bytes(move.row.id) not in sending]
    moves.follow(tx, moved)


def destinations_of(tx: Tx, rows: Sequence[Any]) -> dict[int, Destination]:
    """By flow. One that is gone is taken for one that bears nothing."""
    names = flows.Names(tx)
    of = {row.flow_id: names[row.flow_id][0] for row in rows}
    known = destinations.read(tx, of.values())
    return {flow_id: known.get(name, Destination(name)) for flow_id, name in of.items()}


def purge(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """Forget ended messages whose retention is over, and what is left of claims and keys. `unknown` is never touched."""
    most = commands[0].most
    gone = max(due.delete_old_claims(tx, most), due.delete_old_keys(tx, most))
    for state in ENDED:
        rows = due.lock_due(tx, state, most)
        forget(tx, rows)
        gone = max(gone, len(rows))
    return [gone, *(0 for _ in commands[1:])]


def forget(tx: Tx, rows: Sequence[Any]) -> None:
    """Delete ended messages whose rows are locked, with their keys."""
    if rows:
        lines.forget(tx, sorted(bytes(row.id) for row in rows if row.ordered))
        held.delete_messages(tx, [bytes(row.id) for row in rows], keys=True)


def give_back(tx: Tx, commands: Sequence[Claimed]) -> list[int]:
    """sending -> pending for grants that reached nobody; the message pays nothing for it.

    Only where the grant is still the newest: had the caller come back by its claim id and settled, nothing matches.
    """
    grants = [grant for claimed in commands for grant in claimed.grants]
    rows = {bytes(row.id): row for row in held.lock_messages(tx, sorted({grant.id for grant in grants}))}
    mine = []
    for grant in grants:
        row, token = rows.get(grant.id), reservations.present(grant.token)
        if row is None or token is None or row.state != State.SENDING:
            continue
        if reservations.matches(tx.host.token_key, token, row.grant_digest, grant.id, row.fence):
            mine.append(row)
    of = destinations_of(tx, mine)
    moved = [moves.undelivered(tx, row, of[row.flow_id]) for row in mine]
    if moved:
        written = held.update_settled(tx, [move.change for move in moved])
        if written != len(moved):  # a lease ran out in between: its loss is the abandon sweep's to judge
            sending = held.select_sending(tx, [bytes(row.id) for row in mine])
            moved = [move for move in moved if bytes(move.row.id) not in sending]
        moves.follow(tx, moved)
    return [len(claimed.grants) for claimed in commands]
