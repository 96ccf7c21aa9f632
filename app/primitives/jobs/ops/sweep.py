"""Sweeps: what the service itself must do with jobs in time. Each is one batch, safe on every replica at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from app import reservations
from app.db.tx import Tx
from app.primitives.jobs.model import ENDED, Claimed, Mark, State
from app.primitives.jobs.ops import flows, keys, moves, terminal, terms
from app.primitives.jobs.store import due, held, work

BATCH = 200


@dataclass(frozen=True, slots=True)
class Batch:
    """One round of a sweep. Outcome: how many rows it changed; `most` of them means that there is more."""

    most: int = BATCH


def promote(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """scheduled -> available for jobs whose time has come."""
    rows = due.lock_due(tx, State.SCHEDULED, commands[0].most)
    if rows:
        free = [row for row in rows if not row.marks & Mark.CONCURRENCY]
        if free:
            due.update_promoted(tx, [row.id for row in free])
            _tell_promoted(tx, free)
        if keyed := [row.id for row in rows if row.marks & Mark.CONCURRENCY]:
            keys.due(tx, keyed)
    return [len(rows), *(0 for _ in commands[1:])]


def _tell_promoted(tx: Tx, rows: Sequence[Any]) -> None:
    names = flows.names(tx, {row.flow_id for row in rows})
    ready = Counter(names[row.flow_id] for row in rows)
    memory = flows.here(tx)

    def told() -> None:
        for row in rows:
            memory.heads.lower(row.flow_id, (row.priority, row.available_at))
        memory.wake(ready)

    tx.on_commit(told)


def abandon(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """running -> by the lease-loss policy, for attempts whose lease has ended.

    Race: a settlement that commits first has changed state or fence; the write then matches nothing for that row, and as the
    row is locked from the read on, that cannot happen in between.
    """
    rows = due.lock_due(tx, State.RUNNING, commands[0].most)
    if rows:
        names = flows.names(tx, {row.flow_id for row in rows})
        rules = terms.rules(tx, names.values())
        moved = [moves.abandoned(tx, row, names[row.flow_id][0], rules[names[row.flow_id]]) for row in rows]
        written = held.update_abandoned(tx, [move.change for move in moved])
        if written != len(moved):
            # a server that does not hold its locks: keep to what was written
            running = held.select_running(tx, [row.id for row in rows])
            moved = [move for move in moved if move.change["b_id"] not in running]
        if events := [event for move in moved for event in move.events]:
            held.insert_events(tx, events)
        terminal.handle(tx, terminal.of_moves(moved))
        moves.tell(tx, moved)
        _leave(tx, rows, moved)
    return [len(rows), *(0 for _ in commands[1:])]


def _leave(tx: Tx, rows: Iterable[Any], moved: Iterable[moves.Move]) -> None:
    """What these jobs' keys have to follow."""
    marks = {row.id: row.marks for row in rows if row.marks}
    left = {move.change["b_id"]: move.state for move in moved} if marks else {}
    keys.left(tx, {job_id: (marks[job_id], state) for job_id, state in left.items() if job_id in marks})


def purge(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """Forget ended jobs whose retention is over, and claim ids whose grants can no longer be held."""
    gone = due.delete_old_claims(tx, commands[0].most)
    for state in ENDED:
        rows = due.lock_due(tx, state, commands[0].most)
        if rows:
            keys.forgotten(tx, rows)
            due.delete_jobs(tx, [row.id for row in rows])
        gone = max(gone, len(rows))
    return [gone, *(0 for _ in commands[1:])]


def give_back(tx: Tx, commands: Sequence[Claimed]) -> list[int]:
    """running -> available for grants that reached nobody; the job pays nothing for it.

    Only where the grant is still the newest: had the caller come back by its claim id and settled, nothing matches.
    """
    grants = [grant for claimed in commands for grant in claimed.grants]
    rows = {row.id: row for row in held.lock_jobs(tx, sorted({grant.id for grant in grants}))}
    mine = []
    for grant in grants:
        row, token = rows.get(grant.id), reservations.present(grant.token)
        if row is None or token is None or row.state != State.RUNNING:
            continue
        if reservations.matches(tx.host.token_key, token, row.grant_digest, row.id, row.fence):
            mine.append(row.id)
    names = flows.names(tx, {row.flow_id for row in rows.values()})
    rules = terms.rules(tx, {names[rows[job_id].flow_id] for job_id in mine})
    whole = work.select_jobs(tx, mine) if mine else ()
    moved = [moves.undelivered(tx, row, rules[names[row.flow_id]]) for row in whole]
    if moved:
        written = held.update_settled(tx, [move.change for move in moved])
        if written != len(moved):  # a lease ran out in between: its loss is the abandon sweep's to judge
            running = held.select_running(tx, mine)
            moved = [move for move in moved if move.change["b_id"] not in running]
        if events := [event for move in moved for event in move.events]:
            held.insert_events(tx, events)
        moves.tell(tx, moved)
        _leave(tx, whole, moved)
    return [len(claimed.grants) for claimed in commands]
