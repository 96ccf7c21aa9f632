"""SQL of enqueue and claim. Every UPDATE repeats its condition and gives the number of rows that it matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Row,
    Select,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    select,
    union_all,
    update,
)

from app.db.dialects.base import Dialect
from app.db.tx import Tx
from app.primitives.jobs.model import WAITING, State
from app.primitives.jobs.store.values import HOT, IDS, Rows, alike, by_id, per_row, values_for
from app.primitives.jobs.tables import (
    CLAIM_INDEX,
    flows,
    job_claims,
    job_contents,
    job_keys,
    job_refs,
    jobs,
    queues,
)

MOST_PARTS = 100  # of one UNION; SQLite takes 500

_LOCKED = by_id(select(*HOT))
# only what the verb reads: decoding columns is what a claim or a settlement costs most
_FREE = by_id(
    select(
        jobs.c.id,
        jobs.c.flow_id,
        jobs.c.priority,
        jobs.c.fence,
        jobs.c.attempt,
        jobs.c.max_attempts,
        jobs.c.timeout_micros,
        jobs.c.lease_micros,
        jobs.c.available_at,
        jobs.c.marks,
    )
).where(jobs.c.state == State.AVAILABLE)
_CONTENTS = select(
    job_contents.c.job_id,
    job_contents.c.payload,
    job_contents.c.correlation_id,
    job_contents.c.parent_operation_id,
    job_contents.c.traceparent,
).where(job_contents.c.job_id.in_(IDS))
_INSERT_JOBS, _INSERT_CONTENTS = insert(jobs), insert(job_contents)

# -- flows and queues ------------------------------------------------------------------------------------------------------


def select_flows(tx: Tx) -> Rows:
    """All flows with their queue's pause, limit, retention and contract policy; a small table."""
    return tx.conn.execute(
        select(
            flows.c.id,
            flows.c.queue,
            flows.c.type,
            flows.c.schema_version,
            queues.c.paused_at,
            queues.c.max_depth,
            queues.c.retention_seconds,
            queues.c.contract_policy,
        ).join(queues, queues.c.name == flows.c.queue)
    ).all()


def select_flows_of(tx: Tx, names: Sequence[str]) -> Rows:
    """The flows of these queues that are not paused."""
    query = (
        select(flows.c.id, flows.c.queue, flows.c.type, flows.c.schema_version)
        .join(queues, queues.c.name == flows.c.queue)
        .where(flows.c.queue.in_(bindparam("names", expanding=True)), queues.c.paused_at.is_(None))
    )
    return tx.conn.execute(query, {"names": list(names)}).all()


def insert_missing_queues(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(tx.dialect.insert_missing(queues, rows))


def insert_missing_flows(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(tx.dialect.insert_missing(flows, rows))


def select_busy_flows(tx: Tx, names: Sequence[str]) -> Rows:
    """The flows of these queues that have available work and are not paused; one index look per flow."""
    work = select(literal(1)).where(jobs.c.flow_id == flows.c.id, jobs.c.state == State.AVAILABLE).limit(1).exists()
    query = (
        select(flows.c.queue, flows.c.type, flows.c.schema_version)
        .join(queues, queues.c.name == flows.c.queue)
        .where(flows.c.queue.in_(bindparam("names", expanding=True)), queues.c.paused_at.is_(None), work)
    )
    return tx.conn.execute(query, {"names": list(names)}).all()


def lock_limits(tx: Tx, names: Sequence[str]) -> Rows:
    """(name, max_depth) of these queues, locked in the order of their names."""
    query = select(queues.c.name, queues.c.max_depth).where(queues.c.name.in_(list(names))).order_by(queues.c.name)
    return tx.conn.execute(tx.dialect.lock(query)).all()


def count_waiting(tx: Tx, flow_ids: Sequence[int], most: int) -> int:
    """How many jobs wait in these flows, counted up to `most`."""
    some = (
        select(literal(1))
        .select_from(jobs)
        .where(jobs.c.flow_id.in_(flow_ids), jobs.c.state.in_(list(WAITING)))
        .limit(most)
        .subquery()
    )
    return int(tx.conn.execute(select(func.count()).select_from(some)).scalar_one())


# -- enqueue ---------------------------------------------------------------------------------------------------------------


def insert_jobs(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """The counters begin at 0 by the columns' defaults, and so do the marks where no job has any."""
    if not any(row["marks"] for row in rows):
        rows = [{name: value for name, value in row.items() if name != "marks"} for row in rows]
    tx.conn.execute(_INSERT_JOBS, _filled(rows, ("due_at", "retry_until", "lease_micros")))


def insert_contents(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    may_be_empty = ("correlation_id", "parent_operation_id", "traceparent", "tracestate")
    tx.conn.execute(_INSERT_CONTENTS, _filled(rows, may_be_empty))


def _filled(rows: Sequence[Mapping[str, Any]], may_be_empty: Sequence[str]) -> list[Mapping[str, Any]]:
    """The rows without those columns that none of them fills: most jobs use few, and each value costs its escaping."""
    empty = [name for name in may_be_empty if all(row[name] is None for row in rows)]
    if not empty:
        return list(rows)
    kept = [name for name in rows[0] if name not in empty]
    return [{name: row[name] for name in kept} for row in rows]


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


def _open_head(dialect: Dialect, columns: Sequence[ColumnElement[Any]], place: str) -> Select[Any]:
    """Available jobs of one flow in order from a lower bound on, none while its queue is paused. `place` names the
    parameters.
    """
    flow = bindparam(f"flow{place}", type_=jobs.c.flow_id.type)
    # the queue is looked up once, not per row: it depends on the parameter alone
    unpaused = (
        select(literal(1))
        .select_from(flows)
        .join(queues, queues.c.name == flows.c.queue)
        .where(flows.c.id == flow, queues.c.paused_at.is_(None))
        .exists()
    )
    bound = dialect.at_or_after(
        [jobs.c.priority, jobs.c.available_at],
        [
            bindparam(f"priority{place}", type_=jobs.c.priority.type),
            bindparam(f"since{place}", type_=jobs.c.available_at.type),
        ],
    )
    head = select(*columns).where(jobs.c.flow_id == flow, jobs.c.state == State.AVAILABLE, bound, unpaused)
    return dialect.force_index(_in_order(head).limit(bindparam(f"most{place}", type_=Integer)), jobs, CLAIM_INDEX)


@lru_cache(maxsize=16)
def _free_head(dialect: Dialect, _skip_locked: bool) -> Any:  # noqa: FBT001 - of the key: a later proof of it may change it
    return dialect.lock_free(_open_head(dialect, tuple(_FREE.selected_columns), ""))


@lru_cache(maxsize=256)
def _heads(dialect: Dialect, count: int) -> Any:
    columns = (jobs.c.flow_id, jobs.c.priority, jobs.c.available_at, jobs.c.id)
    parts = [_open_head(dialect, columns, str(place)).subquery() for place in range(count)]
    return union_all(*(select(part) for part in parts))


def lock_heads(tx: Tx, flow_id: int, most: int, bound: tuple[int, int]) -> Rows:
    """Lock the first so many available jobs of one flow that nobody else holds, in order, by the claim index."""
    filled = {"flow": flow_id, "most": most, "priority": bound[0], "since": bound[1]}
    return tx.conn.execute(_free_head(tx.dialect, tx.dialect.skip_locked), filled).all()


def select_heads(tx: Tx, wanted: Mapping[int, int], bounds: Mapping[int, tuple[int, int]]) -> Rows:
    """The first so many available jobs of each flow (flow id -> number) from its bound (priority, available_at) on, without
    a lock, by the claim index alone.
    """
    pairs = list(wanted.items())
    found: list[Row[*tuple[Any, ...]]] = []
    for start in range(0, len(pairs), MOST_PARTS):
        part = pairs[start : start + MOST_PARTS]
        filled: dict[str, int] = {}
        for place, (flow_id, most) in enumerate(part):
            filled[f"flow{place}"], filled[f"most{place}"] = flow_id, most
            filled[f"priority{place}"], filled[f"since{place}"] = bounds[flow_id]
        found += tx.conn.execute(_heads(tx.dialect, len(part)), filled)
    return found


def lock_available(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """Lock those of these jobs that are available and that nobody else holds; by primary key, ascending."""
    return tx.conn.execute(tx.dialect.lock_free(_FREE), {"ids": list(ids)}).all()


def update_claimed(tx: Tx, grant: bytes, workers: Mapping[bytes, str], leases: Mapping[bytes, int]) -> int:
    """available -> running. The lease ends with the attempt's own ceiling at the latest. Keys of the mappings: job ids."""
    written = 0
    for group in alike(workers, leases):
        own_worker, worker = values_for("worker", {job_id: workers[job_id] for job_id in group})
        own_lease, lease = values_for("due_at", {job_id: leases[job_id] for job_id in group})
        filled = {"ids": group, "now": tx.now, "grant": grant, **worker, **lease}
        written += tx.conn.execute(_claiming(own_worker, own_lease), filled).rowcount
    return written


@lru_cache(maxsize=256)  # building a statement costs more than running it
def _claiming(own_worker: int, own_lease: int) -> Any:
    lease, now = per_row(jobs.c.due_at, own_lease), bindparam("now", type_=jobs.c.due_at.type)
    return (
        update(jobs)
        .where(jobs.c.id.in_(IDS), jobs.c.state == State.AVAILABLE)
        .values(
            state=State.RUNNING,
            fence=jobs.c.fence + 1,
            attempt=jobs.c.attempt + 1,
            claimed_at=now,
            grant_digest=bindparam("grant", type_=jobs.c.grant_digest.type),
            settlement_digest=None,
            cancel_requested_at=None,
            worker=per_row(jobs.c.worker, own_worker),
            lease_micros=lease,
            due_at=now + case((jobs.c.timeout_micros < lease, jobs.c.timeout_micros), else_=lease),
        )
    )


def select_granted(tx: Tx, grants: Sequence[bytes], ids: Sequence[bytes]) -> Rows:
    """Those of these jobs that run under one of these grants."""
    query = _LOCKED.where(jobs.c.grant_digest.in_(bindparam("grants", expanding=True)), jobs.c.state == State.RUNNING)
    return tx.conn.execute(query, {"ids": list(ids), "grants": list(grants)}).all()


def select_contents(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """What a claim hands out besides the hot row."""
    return tx.conn.execute(_CONTENTS, {"ids": list(ids)}).all()


def lock_claims(tx: Tx, digests: Sequence[bytes]) -> Rows:
    """The grants of earlier claims with these ids."""
    query = (
        select(job_claims)
        .where(job_claims.c.digest.in_(bindparam("digests", expanding=True)))
        .order_by(job_claims.c.digest)
    )
    return tx.conn.execute(tx.dialect.lock(query), {"digests": list(digests)}).all()


def insert_claim(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Fails as a duplicate when another replica granted to the same claim id a moment ago."""
    tx.conn.execute(insert(job_claims), list(rows))


def delete_claims(tx: Tx, digests: Sequence[bytes]) -> None:
    tx.conn.execute(delete(job_claims).where(job_claims.c.digest.in_(list(digests))))
