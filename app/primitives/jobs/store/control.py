"""SQL of what operators do: cancel, retry, reconcile, purge, and the rows of queues.

Jobs are changed by primary key, after their rows were locked (`lock_jobs`). Every UPDATE repeats state and fence
and gives the number of rows that it matched. `fences` maps the ids of the jobs to the fences that were read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Update, func, literal, select, update

from app.db.tx import Tx
from app.primitives.jobs.model import ENDED, WAITING, Kind, State
from app.primitives.jobs.store.lists import Narrow, narrowed
from app.primitives.jobs.store.values import HOT, IDS, Rows, assigned, by_id
from app.primitives.jobs.tables import DUE_INDEX, job_contents, job_events, jobs, queues

_WHOLE = by_id(select(*HOT))


def lock_jobs(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """Lock these jobs by primary key, ascending, waiting for whoever holds them; with all of their hot rows."""
    return tx.conn.execute(tx.dialect.lock(_WHOLE), {"ids": list(ids)}).all()


def _still(fences: Mapping[bytes, int], *states: State) -> Update:
    """An UPDATE of these jobs where they are still in one of these states, with the fence that was read."""
    return update(jobs).where(
        jobs.c.id.in_(IDS), jobs.c.state.in_(list(states)), jobs.c.fence == assigned(fences, jobs.c.fence)
    )


def update_cancelled(
    tx: Tx, fences: Mapping[bytes, int], requests: Mapping[bytes, str], purge: Mapping[bytes, int]
) -> int:
    """scheduled, available, blocked -> cancelled."""
    change = _still(fences, *WAITING).values(
        state=State.CANCELLED,
        ended_at=tx.now,
        due_at=assigned(purge, jobs.c.due_at),
        ended_request_id=assigned(requests, jobs.c.ended_request_id),
    )
    return tx.conn.execute(change, {"ids": list(fences)}).rowcount


def update_cancel_requested(tx: Tx, fences: Mapping[bytes, int]) -> int:
    """running: ask the attempt to stop. Nothing else changes, its lease least of all."""
    change = (
        _still(fences, State.RUNNING).where(jobs.c.cancel_requested_at.is_(None)).values(cancel_requested_at=tx.now)
    )
    return tx.conn.execute(change, {"ids": list(fences)}).rowcount


def update_retried(tx: Tx, fences: Mapping[bytes, int], *states: State, into: State = State.AVAILABLE) -> int:
    """`states` -> available, or blocked, with a fresh budget. The fence stays, so no old token is ever good again."""
    change = _still(fences, *states).values(
        state=into,
        available_at=tx.now,
        due_at=None,
        attempt=0,
        lease_losses=0,
        releases=0,
        throttles=0,
        ended_at=None,
        ended_request_id=None,
        cancel_requested_at=None,
    )
    return tx.conn.execute(change, {"ids": list(fences)}).rowcount


def update_verdict(
    tx: Tx,
    fences: Mapping[bytes, int],
    state: State,
    requests: Mapping[bytes, str],
    purge: Mapping[bytes, int],
) -> int:
    """Unknown -> succeeded or dead."""
    change = _still(fences, State.UNKNOWN).values(
        state=state,
        ended_at=tx.now,
        due_at=assigned(purge, jobs.c.due_at),
        ended_request_id=assigned(requests, jobs.c.ended_request_id),
    )
    return tx.conn.execute(change, {"ids": list(fences)}).rowcount


def select_newest_event(tx: Tx, job_id: bytes, kind: Kind | None = None) -> dict[str, Any] | None:
    """The newest stored event of one job, or the newest of this kind; None if there is none. By the events' primary key.

    That its death was handled is told beside the death, and is not what happened to it last.
    """
    query = select(job_events).where(job_events.c.job_id == job_id)
    wanted = job_events.c.kind != Kind.HANDLED.value if kind is None else job_events.c.kind == kind.value
    query = query.where(wanted)
    newest = query.order_by(job_events.c.at.desc(), job_events.c.id.desc()).limit(1)
    found = tx.conn.execute(newest).mappings().one_or_none()
    return None if found is None else {str(name): value for name, value in found.items()}


def select_references(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """What callers find these jobs by (job_id, correlation_id, parent_operation_id)."""
    query = select(job_contents.c.job_id, job_contents.c.correlation_id, job_contents.c.parent_operation_id).where(
        job_contents.c.job_id.in_(IDS)
    )
    return tx.conn.execute(query, {"ids": list(ids)}).all()


# -- bulk ------------------------------------------------------------------------------------------------------------------

ELIGIBLE: Mapping[str, tuple[State, ...]] = {
    "cancel": (*WAITING, State.RUNNING),
    "retry": (State.DEAD, State.CANCELLED),
    "purge": ENDED,
}


def select_eligible(tx: Tx, action: str, narrow: Narrow, before: int, most: int) -> list[bytes]:
    """Ids of jobs that this action can change and that the filter fits; those that came to it after `before` do not count.

    By the claim index where flows are named, by the references where those are, else by the due index. No order: what was
    changed drops out, so the next look finds others.
    """
    query = narrowed(select(jobs.c.id), narrow, ELIGIBLE[action])
    since = jobs.c.created_at if action == "cancel" else jobs.c.ended_at
    query = query.where(since <= before)
    if action == "cancel":
        query = query.where(jobs.c.cancel_requested_at.is_(None))
    if narrow.flow_ids is None and not narrow.references:
        query = tx.dialect.force_index(query, jobs, DUE_INDEX)
    return [row.id for row in tx.conn.execute(query.limit(most))]


def count_eligible(tx: Tx, action: str, narrow: Narrow, most: int) -> int:
    """How many there are, counted up to `most`; by the same indexes."""
    query = narrowed(select(literal(1).label("one")), narrow, ELIGIBLE[action])
    if action == "cancel":
        query = query.where(jobs.c.cancel_requested_at.is_(None))
    return int(tx.conn.execute(select(func.count()).select_from(query.limit(most).subquery())).scalar_one())


# -- queues ----------------------------------------------------------------------------------------------------------------


def lock_queue(tx: Tx, name: str) -> Any:
    """The row of one queue, locked; None if there is none. By primary key."""
    return tx.conn.execute(tx.dialect.lock(select(queues).where(queues.c.name == name))).one_or_none()


def update_queue(tx: Tx, name: str, values: Mapping[str, Any]) -> int:
    change = update(queues).where(queues.c.name == name).values(updated_at=tx.now, **values)
    return tx.conn.execute(change).rowcount


def update_paused(tx: Tx, name: str, reason: str) -> int:
    """Pause a queue that is not paused."""
    change = update(queues).where(queues.c.name == name, queues.c.paused_at.is_(None))
    return tx.conn.execute(change.values(paused_at=tx.now, paused_reason=reason, updated_at=tx.now)).rowcount


def update_resumed(tx: Tx, name: str) -> int:
    """Let a paused queue go on."""
    change = update(queues).where(queues.c.name == name, queues.c.paused_at.is_not(None))
    return tx.conn.execute(change.values(paused_at=None, paused_reason=None, updated_at=tx.now)).rowcount
