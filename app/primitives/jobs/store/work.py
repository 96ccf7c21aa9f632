"""SQL of the hot paths: enqueue, claim, settle, renew, and their sweeps.

Rows are given with the columns of `HOT`. Every UPDATE repeats its condition and gives the number of rows that it matched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Integer, Row, Select, bindparam, case, delete, func, insert, literal, select, union_all, update

from app.db.dialects.base import Dialect
from app.db.tx import Tx
from app.primitives.jobs.model import State
from app.primitives.jobs.tables import (
    CLAIM_INDEX,
    DUE_INDEX,
    flows,
    job_claims,
    job_contents,
    job_events,
    job_keys,
    job_progress,
    job_refs,
    job_results,
    jobs,
    queues,
)

Rows = Sequence[Row[Any]]
_IDS = bindparam("ids", expanding=True)
HOT = tuple(jobs.c)


def _by_id(query: Select[Any]) -> Select[Any]:
    return query.where(jobs.c.id.in_(_IDS)).order_by(jobs.c.id)


_LOCKED = _by_id(select(*HOT))
# only what the verb reads: decoding columns is what a claim or a settlement costs most
_FREE = _by_id(select(
    jobs.c.id, jobs.c.flow_id, jobs.c.priority, jobs.c.fence, jobs.c.attempt, jobs.c.max_attempts, jobs.c.timeout_micros,
)).where(jobs.c.state == State.AVAILABLE)
_HELD = _by_id(select(
    jobs.c.id, jobs.c.flow_id, jobs.c.state, jobs.c.due_at, jobs.c.fence, jobs.c.attempt, jobs.c.claimed_at,
    jobs.c.grant_digest, jobs.c.settlement_digest,
))


def _per_row(column: ColumnElement[Any], count: int) -> ColumnElement[Any]:
    """A value for SET: one for all rows (count 0), or one by id for each of `count` rows. `_values` fills it."""
    name = column.name
    if not count:
        return bindparam(f"{name}_all", type_=column.type)
    pairs = [
        (bindparam(f"{name}_id{place}", type_=jobs.c.id.type), bindparam(f"{name}_{place}", type_=column.type))
        for place in range(count)
    ]
    return case(*pairs, value=jobs.c.id)


def _values(name: str, values: Mapping[bytes, Any]) -> tuple[int, dict[str, Any]]:
    """How many rows need a value of their own, and the parameters for `_per_row`."""
    distinct = set(values.values())
    if len(distinct) == 1:
        return 0, {f"{name}_all": distinct.pop()}
    filled: dict[str, Any] = {}
    for place, (key, value) in enumerate(values.items()):
        filled[f"{name}_id{place}"], filled[f"{name}_{place}"] = key, value
    return len(values), filled


def live(tx: Tx) -> ColumnElement[bool]:
    """The lease has not ended by the database's own clock at the moment of the write."""
    return jobs.c.due_at > tx.dialect.now() + tx.shift if tx.shift else jobs.c.due_at > tx.dialect.now()


# -- flows and queues ------------------------------------------------------------------------------------------------------


def select_flows(tx: Tx) -> Rows:
    """All flows with their queue's pause, limit and retention; a small table."""
    return tx.conn.execute(select(
        flows.c.id, flows.c.queue, flows.c.type, flows.c.schema_version,
        queues.c.paused_at, queues.c.max_depth, queues.c.retention_seconds,
    ).join(queues, queues.c.name == flows.c.queue)).all()


def select_flows_of(tx: Tx, names: Sequence[str]) -> Rows:
    """The flows of these queues that are not paused."""
    query = select(flows.c.id, flows.c.queue, flows.c.type, flows.c.schema_version).join(
        queues, queues.c.name == flows.c.queue
    ).where(flows.c.queue.in_(bindparam("names", expanding=True)), queues.c.paused_at.is_(None))
    return tx.conn.execute(query, {"names": list(names)}).all()


def insert_missing_queues(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(tx.dialect.insert_missing(queues, rows))


def insert_missing_flows(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(tx.dialect.insert_missing(flows, rows))


def select_busy_flows(tx: Tx, names: Sequence[str]) -> Rows:
    """The flows of these queues that have available work and are not paused; one index look per flow."""
    work = select(literal(1)).where(jobs.c.flow_id == flows.c.id, jobs.c.state == State.AVAILABLE).limit(1).exists()
    query = select(flows.c.queue, flows.c.type, flows.c.schema_version).join(
        queues, queues.c.name == flows.c.queue
    ).where(flows.c.queue.in_(bindparam("names", expanding=True)), queues.c.paused_at.is_(None), work)
    return tx.conn.execute(query, {"names": list(names)}).all()


def count_waiting(tx: Tx, flow_ids: Sequence[int], most: int) -> int:
    """How many jobs wait in these flows, counted up to `most`."""
    some = select(literal(1)).select_from(jobs).where(
        jobs.c.flow_id.in_(flow_ids), jobs.c.state.in_([State.AVAILABLE, State.SCHEDULED])
    ).limit(most).subquery()
    return int(tx.conn.execute(select(func.count()).select_from(some)).scalar_one())


# -- enqueue ---------------------------------------------------------------------------------------------------------------


def insert_jobs(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(jobs), list(rows))


def insert_contents(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(job_contents), list(rows))


def insert_keys(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """The primary key decides between two enqueues with one key: the later one fails as a duplicate."""
    tx.conn.execute(insert(job_keys), list(rows))


def insert_refs(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(job_refs), list(rows))


def select_keys(tx: Tx, digests: Sequence[bytes]) -> Rows:
    query = select(job_keys).where(job_keys.c.digest.in_(bindparam("digests", expanding=True)))
    return tx.conn.execute(query, {"digests": list(digests)}).all()


def select_jobs(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """Without a lock, by id ascending."""
    return tx.conn.execute(_LOCKED, {"ids": list(ids)}).all()


# -- claim -----------------------------------------------------------------------------------------------------------------


def _in_order(query: Select[Any]) -> Select[Any]:
    return query.order_by(jobs.c.priority, jobs.c.available_at, jobs.c.id)


def _open_head(columns: Sequence[ColumnElement[Any]], place: str) -> Select[Any]:
    """Available jobs of one flow in order, none while its queue is paused. `place` names the parameters."""
    flow = bindparam(f"flow{place}", type_=jobs.c.flow_id.type)
    # the queue is looked up once, not per row: it depends on the parameter alone
    unpaused = select(literal(1)).select_from(flows).join(queues, queues.c.name == flows.c.queue).where(
        flows.c.id == flow, queues.c.paused_at.is_(None)
    ).exists()
    head = select(*columns).where(jobs.c.flow_id == flow, jobs.c.state == State.AVAILABLE, unpaused)
    return _in_order(head).limit(bindparam(f"most{place}", type_=Integer))


_HEAD = _open_head((*_FREE.selected_columns, jobs.c.available_at), "")


@lru_cache(maxsize=256)
def _heads(dialect: Dialect, count: int) -> Any:
    columns = (jobs.c.flow_id, jobs.c.priority, jobs.c.available_at, jobs.c.id)
    parts = [dialect.force_index(_open_head(columns, str(place)), jobs, CLAIM_INDEX).subquery() for place in range(count)]
    return union_all(*(select(part) for part in parts))


def lock_heads(tx: Tx, flow_id: int, most: int) -> Rows:
    """Lock the first so many available jobs of one flow that nobody else holds, in order, by the claim index."""
    query = tx.dialect.lock_free(tx.dialect.force_index(_HEAD, jobs, CLAIM_INDEX))
    return tx.conn.execute(query, {"flow": flow_id, "most": most}).all()


def select_heads(tx: Tx, wanted: Mapping[int, int]) -> Rows:
    """The first so many available jobs of each flow (flow id -> number), without a lock, by the claim index alone."""
    filled: dict[str, int] = {}
    for place, (flow_id, most) in enumerate(wanted.items()):
        filled[f"flow{place}"], filled[f"most{place}"] = flow_id, most
    return tx.conn.execute(_heads(tx.dialect, len(wanted)), filled).all()


def lock_available(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """Lock those of these jobs that are available and that nobody else holds; by primary key, ascending."""
    return tx.conn.execute(tx.dialect.lock_free(_FREE), {"ids": list(ids)}).all()


def update_claimed(tx: Tx, ids: Sequence[bytes], grant: bytes, workers: Mapping[bytes, str], leases: Mapping[bytes, int]) -> int:
    """available -> running. The lease ends with the attempt's own ceiling at the latest. Keys of the mappings: job ids."""
    own_worker, worker = _values("worker", workers)
    own_lease, lease = _values("due_at", leases)
    filled = {"ids": list(ids), "now": tx.now, "grant": grant, **worker, **lease}
    return tx.conn.execute(_claiming(own_worker, own_lease), filled).rowcount


@lru_cache(maxsize=256)  # building a statement costs more than running it
def _claiming(own_worker: int, own_lease: int) -> Any:
    lease, now = _per_row(jobs.c.due_at, own_lease), bindparam("now", type_=jobs.c.due_at.type)
    return update(jobs).where(jobs.c.id.in_(_IDS), jobs.c.state == State.AVAILABLE).values(
        state=State.RUNNING, fence=jobs.c.fence + 1, attempt=jobs.c.attempt + 1, claimed_at=now,
        grant_digest=bindparam("grant", type_=jobs.c.grant_digest.type), settlement_digest=None, cancel_requested_at=None,
        worker=_per_row(jobs.c.worker, own_worker),
        due_at=now + case((jobs.c.timeout_micros < lease, jobs.c.timeout_micros), else_=lease),
    )


def select_granted(tx: Tx, grants: Sequence[bytes], ids: Sequence[bytes]) -> Rows:
    """Those of these jobs that run under one of these grants."""
    query = _LOCKED.where(jobs.c.grant_digest.in_(bindparam("grants", expanding=True)), jobs.c.state == State.RUNNING)
    return tx.conn.execute(query, {"ids": list(ids), "grants": list(grants)}).all()


def select_contents(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """What a claim hands out besides the hot row."""
    query = select(
        job_contents.c.job_id, job_contents.c.payload, job_contents.c.correlation_id, job_contents.c.parent_operation_id,
        job_contents.c.traceparent,
    ).where(job_contents.c.job_id.in_(_IDS))
    return tx.conn.execute(query, {"ids": list(ids)}).all()


def lock_claims(tx: Tx, digests: Sequence[bytes]) -> Rows:
    """The grants of earlier claims with these ids."""
    query = select(job_claims).where(job_claims.c.digest.in_(bindparam("digests", expanding=True))).order_by(job_claims.c.digest)
    return tx.conn.execute(tx.dialect.lock(query), {"digests": list(digests)}).all()


def insert_claim(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Fails as a duplicate when another replica granted to the same claim id a moment ago."""
    tx.conn.execute(insert(job_claims), list(rows))


def delete_claims(tx: Tx, digests: Sequence[bytes]) -> None:
    tx.conn.execute(delete(job_claims).where(job_claims.c.digest.in_(list(digests))))


# -- settle and renew ------------------------------------------------------------------------------------------------------


def lock_jobs(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """Lock these jobs by primary key, ascending, waiting for whoever holds them; what a reservation is judged by."""
    return tx.conn.execute(tx.dialect.lock(_HELD), {"ids": list(ids)}).all()


def update_succeeded(
    tx: Tx, grants: Sequence[bytes], settlements: Mapping[bytes, bytes], requests: Mapping[bytes, str], purge: Mapping[bytes, int],
) -> int:
    """running -> succeeded, for the newest unexpired reservation only. Keys of the mappings: job ids."""
    own_digest, digest = _values("settlement_digest", settlements)
    own_request, request = _values("ended_request_id", requests)
    own_purge, due = _values("due_at", purge)
    change = _succeeding(own_digest, own_request, own_purge).where(live(tx))
    filled = {"ids": list(settlements), "grants": list(set(grants)), "now": tx.now, **digest, **request, **due}
    return tx.conn.execute(change, filled).rowcount


@lru_cache(maxsize=256)
def _succeeding(own_digest: int, own_request: int, own_purge: int) -> Any:
    return update(jobs).where(
        jobs.c.id.in_(_IDS), jobs.c.state == State.RUNNING, jobs.c.grant_digest.in_(bindparam("grants", expanding=True))
    ).values(
        state=State.SUCCEEDED, ended_at=bindparam("now", type_=jobs.c.ended_at.type), due_at=_per_row(jobs.c.due_at, own_purge),
        settlement_digest=_per_row(jobs.c.settlement_digest, own_digest),
        ended_request_id=_per_row(jobs.c.ended_request_id, own_request),
    )


_MOVED = (
    "state", "due_at", "available_at", "attempt", "lease_losses", "releases", "throttles", "ended_at", "category",
    "settlement_digest", "ended_request_id",
)


def update_settled(tx: Tx, moves: Sequence[Mapping[str, Any]]) -> int:
    """running -> whatever each move says, for the newest unexpired reservation only (`b_id`, `b_fence`, `b_grant`)."""
    change = _move().where(jobs.c.grant_digest == bindparam("b_grant"), live(tx))
    return tx.conn.execute(change, list(moves)).rowcount


def update_abandoned(tx: Tx, moves: Sequence[Mapping[str, Any]]) -> int:
    """running -> whatever each move says, for a reservation whose lease has ended."""
    change = _move().where(jobs.c.due_at <= tx.now)
    return tx.conn.execute(change, [{key: value for key, value in move.items() if key != "b_grant"} for move in moves]).rowcount


def _move() -> Any:
    return update(jobs).where(
        jobs.c.id == bindparam("b_id"), jobs.c.state == State.RUNNING, jobs.c.fence == bindparam("b_fence")
    ).values({name: bindparam(f"b_{name}", type_=jobs.c[name].type) for name in _MOVED})


def select_running(tx: Tx, ids: Sequence[bytes]) -> set[bytes]:
    """Which of these jobs still run: a settlement that matched no row found its lease ended."""
    query = select(jobs.c.id).where(jobs.c.id.in_(_IDS), jobs.c.state == State.RUNNING)
    return {row.id for row in tx.conn.execute(query, {"ids": list(ids)})}


def insert_results(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(job_results), list(rows))


def insert_events(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(job_events), list(rows))


def select_events_of_grants(tx: Tx, ids: Sequence[bytes], grants: Sequence[bytes]) -> Rows:
    """How earlier reservations of these jobs ended."""
    query = select(job_events).where(
        job_events.c.job_id.in_(_IDS), job_events.c.grant_digest.in_(bindparam("grants", expanding=True))
    ).order_by(job_events.c.job_id, job_events.c.id)
    return tx.conn.execute(query, {"ids": list(ids), "grants": list(grants)}).all()


def update_renewed(tx: Tx, ids: Sequence[bytes], grants: Sequence[bytes], lease: int) -> int:
    """Extend leases to now + `lease`, never past the attempt's ceiling and never back."""
    ceiling = jobs.c.claimed_at + jobs.c.timeout_micros
    change = update(jobs).where(
        jobs.c.id.in_(_IDS), jobs.c.state == State.RUNNING, jobs.c.grant_digest.in_(bindparam("grants", expanding=True)), live(tx)
    ).values(due_at=case((ceiling < tx.now + lease, ceiling), else_=tx.now + lease))
    return tx.conn.execute(change, {"ids": list(ids), "grants": list(set(grants))}).rowcount


def upsert_progress(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(tx.dialect.upsert(job_progress, rows, ["progress", "updated_at"]))


def select_cancel_reasons(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """The requests to cancel of these jobs, oldest first."""
    query = select(job_events.c.job_id, job_events.c.message).where(
        job_events.c.job_id.in_(_IDS), job_events.c.kind == "cancel_requested"
    ).order_by(job_events.c.job_id, job_events.c.id)
    return tx.conn.execute(query, {"ids": list(ids)}).all()


# -- sweeps ----------------------------------------------------------------------------------------------------------------


def lock_due(tx: Tx, state: State, most: int) -> Rows:
    """Jobs in `state` that are due, the longest due first, that nobody else holds; by the due index."""
    query = select(*HOT).where(jobs.c.state == int(state), jobs.c.due_at <= tx.now).order_by(jobs.c.due_at, jobs.c.id).limit(most)
    return tx.conn.execute(tx.dialect.lock_free(tx.dialect.force_index(query, jobs, DUE_INDEX))).all()


def update_promoted(tx: Tx, ids: Sequence[bytes]) -> int:
    """scheduled -> available, where due."""
    change = update(jobs).where(jobs.c.id.in_(_IDS), jobs.c.state == State.SCHEDULED, jobs.c.due_at <= tx.now).values(
        state=State.AVAILABLE, due_at=None
    )
    return tx.conn.execute(change, {"ids": list(ids)}).rowcount


def delete_jobs(tx: Tx, ids: Sequence[bytes]) -> None:
    """Everything there is of these jobs, the hot row last."""
    for column in (
        job_contents.c.job_id, job_results.c.job_id, job_progress.c.job_id, job_keys.c.job_id, job_refs.c.job_id,
        job_events.c.job_id, jobs.c.id,
    ):
        tx.conn.execute(delete(column.table).where(column.in_(_IDS)), {"ids": list(ids)})


def delete_old_claims(tx: Tx, most: int) -> int:
    """Claim ids whose grants can no longer be held."""
    old = select(job_claims.c.digest).where(job_claims.c.purge_at <= tx.now).order_by(job_claims.c.purge_at).limit(most)
    digests = [row.digest for row in tx.conn.execute(tx.dialect.lock_free(old))]
    if digests:
        delete_claims(tx, digests)
    return len(digests)
