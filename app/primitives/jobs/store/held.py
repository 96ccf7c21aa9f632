"""SQL of what is held: settle and renew. Every UPDATE repeats its condition and gives the number of rows that it matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, case, insert, literal, select, update

from app.db.dialects.base import Dialect
from app.db.tx import Tx
from app.primitives.jobs.model import State
from app.primitives.jobs.store.values import IDS, Rows, alike, assigned, by_id, per_row, values_for
from app.primitives.jobs.tables import job_events, job_progress, job_results, jobs

_HELD = by_id(
    select(
        jobs.c.id,
        jobs.c.flow_id,
        jobs.c.state,
        jobs.c.due_at,
        jobs.c.fence,
        jobs.c.attempt,
        jobs.c.claimed_at,
        jobs.c.grant_digest,
        jobs.c.settlement_digest,
        jobs.c.marks,
    )
)


def live(tx: Tx) -> ColumnElement[bool]:
    """The lease has not ended by the database's own clock at the moment of the write."""
    return _live(tx.dialect, tx.shift)


def _live(dialect: Dialect, shift: int) -> ColumnElement[bool]:
    return jobs.c.due_at > dialect.now() + shift if shift else jobs.c.due_at > dialect.now()


# -- settle and renew ------------------------------------------------------------------------------------------------------


def lock_jobs(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """Lock these jobs by primary key, ascending, waiting for whoever holds them; what a reservation is judged by."""
    return tx.conn.execute(_locking(tx.dialect), {"ids": list(ids)}).all()


@lru_cache(maxsize=16)  # to build a statement costs more than to run it, here and below
def _locking(dialect: Dialect) -> Select[Any]:
    return dialect.lock(_HELD)


def update_succeeded(
    tx: Tx,
    grants: Sequence[bytes],
    settlements: Mapping[bytes, bytes],
    requests: Mapping[bytes, str],
    purge: Mapping[bytes, int],
) -> int:
    """running -> succeeded, for the newest unexpired reservation only. Keys of the mappings: job ids."""
    written = 0
    for ids in alike(requests, purge):
        own_digest, digest = values_for("settlement_digest", {job_id: settlements[job_id] for job_id in ids})
        own_request, request = values_for("ended_request_id", {job_id: requests[job_id] for job_id in ids})
        own_purge, due = values_for("due_at", {job_id: purge[job_id] for job_id in ids})
        change = _succeeding(tx.dialect, tx.shift, own_digest, own_request, own_purge)
        filled = {"ids": ids, "grants": list(set(grants)), "now": tx.now, **digest, **request, **due}
        written += tx.conn.execute(change, filled).rowcount
    return written


@lru_cache(maxsize=256)
def _succeeding(dialect: Dialect, shift: int, own_digest: int, own_request: int, own_purge: int) -> Any:
    return (
        update(jobs)
        .where(
            jobs.c.id.in_(IDS),
            jobs.c.state == State.RUNNING,
            jobs.c.grant_digest.in_(bindparam("grants", expanding=True)),
            _live(dialect, shift),
        )
        .values(
            state=State.SUCCEEDED,
            ended_at=bindparam("now", type_=jobs.c.ended_at.type),
            due_at=per_row(jobs.c.due_at, own_purge),
            settlement_digest=per_row(jobs.c.settlement_digest, own_digest),
            ended_request_id=per_row(jobs.c.ended_request_id, own_request),
        )
    )


_MOVED = (
    "state",
    "due_at",
    "available_at",
    "attempt",
    "lease_losses",
    "releases",
    "throttles",
    "ended_at",
    "category",
    "lease_micros",
    "settlement_digest",
    "ended_request_id",
)


def update_settled(tx: Tx, moves: Sequence[Mapping[str, Any]]) -> int:
    """running -> whatever each move says, for the newest unexpired reservation only (`b_id`, `b_fence`, `b_grant`)."""
    change = _move().where(jobs.c.grant_digest == bindparam("b_grant"), live(tx))
    return tx.conn.execute(change, list(moves)).rowcount


def update_abandoned(tx: Tx, moves: Sequence[Mapping[str, Any]]) -> int:
    """running -> whatever each move says, for a reservation whose lease has ended by the database's own clock."""
    change = _move().where(~live(tx))
    return tx.conn.execute(
        change, [{key: value for key, value in move.items() if key != "b_grant"} for move in moves]
    ).rowcount


def _move() -> Any:
    return (
        update(jobs)
        .where(jobs.c.id == bindparam("b_id"), jobs.c.state == State.RUNNING, jobs.c.fence == bindparam("b_fence"))
        .values({name: bindparam(f"b_{name}", type_=jobs.c[name].type) for name in _MOVED})
    )


def select_running(tx: Tx, ids: Sequence[bytes]) -> set[bytes]:
    """Which of these jobs still run: a settlement that matched no row found its lease ended."""
    query = select(jobs.c.id).where(jobs.c.id.in_(IDS), jobs.c.state == State.RUNNING)
    return {row.id for row in tx.conn.execute(query, {"ids": list(ids)})}


def select_live(tx: Tx, ids: Sequence[bytes]) -> set[bytes]:
    """Which of these jobs run under a lease that holds by the database's own clock."""
    query = select(jobs.c.id).where(jobs.c.id.in_(IDS), jobs.c.state == State.RUNNING, live(tx))
    return {row.id for row in tx.conn.execute(query, {"ids": list(ids)})}


def insert_results(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(job_results), list(rows))


def insert_events(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(job_events), list(rows))


def select_events_of_grants(tx: Tx, ids: Sequence[bytes], grants: Sequence[bytes]) -> Rows:
    """How earlier reservations of these jobs ended."""
    query = (
        select(job_events)
        .where(job_events.c.job_id.in_(IDS), job_events.c.grant_digest.in_(bindparam("grants", expanding=True)))
        .order_by(job_events.c.job_id, job_events.c.id)
    )
    return tx.conn.execute(query, {"ids": list(ids), "grants": list(grants)}).all()


def update_renewed(tx: Tx, fences: Mapping[bytes, int], grants: Sequence[bytes], end: int) -> int:
    """Extend these reservations (job id -> fence) to `end`, never past the attempt's ceiling and never back."""
    ceiling = jobs.c.claimed_at + jobs.c.timeout_micros
    until = literal(end, jobs.c.due_at.type)
    reached = case((ceiling < until, ceiling), else_=until)
    change = (
        update(jobs)
        .where(
            jobs.c.id.in_(IDS),
            jobs.c.state == State.RUNNING,
            jobs.c.fence == assigned(fences, jobs.c.fence),
            jobs.c.grant_digest.in_(bindparam("grants", expanding=True)),
            live(tx),
        )
        .values(due_at=case((reached > jobs.c.due_at, reached), else_=jobs.c.due_at))
    )
    return tx.conn.execute(change, {"ids": list(fences), "grants": list(set(grants))}).rowcount


def upsert_progress(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(tx.dialect.upsert(job_progress, rows, ["progress", "updated_at"]))


def select_cancel_reasons(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """The requests to cancel of these jobs, oldest first."""
    query = (
        select(job_events.c.job_id, job_events.c.message)
        .where(job_events.c.job_id.in_(IDS), job_events.c.kind == "cancel_requested")
        .order_by(job_events.c.job_id, job_events.c.id)
    )
    return tx.conn.execute(query, {"ids": list(ids)}).all()
