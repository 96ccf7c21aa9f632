"""SQL that reads for people: one job with its history, pages of jobs, pages of queues. Nothing here locks.

A page is cut by one of four ways, so that its cost does not grow with the table:

    references      `correlation_id`, `parent_operation_id`: by the primary key of `job_refs`, then by the jobs' own
    few             a named flow or state with at most `FEW` jobs: their ids by the claim or the due index, then by primary key
    many            a named flow or state with more: by primary key from the newest on; a page of a flow that holds one in n
                    jobs reads n times as many rows
    all             anything else: by primary key; `created_*` narrow the ids, which begin with the moment of their making

The last two read at most `WINDOW` rows for one page where a filter may throw most of them away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Select, func, literal, select

from app.db.tx import Tx
from app.primitives.jobs.model import State
from app.primitives.jobs.store.values import HOT, IDS, Rows
from app.primitives.jobs.tables import (
    CLAIM_INDEX,
    DUE_INDEX,
    flows,
    job_contents,
    job_events,
    job_progress,
    job_refs,
    job_results,
    jobs,
    queues,
)

FEW = 2000
WINDOW = 20_000
MOST_EVENTS = 2000
_REFERENCED = (job_contents.c.correlation_id, job_contents.c.parent_operation_id)


@dataclass(frozen=True, slots=True)
class Narrow:
    """A filter in the words of the tables. `flow_ids` None: any; `references`: (kind, digest) pairs that must all fit."""

    flow_ids: tuple[int, ...] | None = None
    state: State | None = None
    references: tuple[tuple[int, bytes], ...] = ()
    worker: str | None = None
    category: str | None = None
    created_after: int | None = None
    created_before: int | None = None


def narrowed(query: Select[Any], narrow: Narrow, states: Sequence[State] | None = None) -> Select[Any]:
    """`query` over jobs with the conditions of this filter, and in one of `states`."""
    wanted = states if narrow.state is None else [state for state in states or State if state is narrow.state]
    if narrow.flow_ids is not None:
        query = query.where(jobs.c.flow_id.in_(list(narrow.flow_ids)))
    if wanted is not None:
        query = query.where(jobs.c.state.in_([int(state) for state in wanted]))
    for kind, digest in narrow.references:
        query, _ = _referenced(query, kind, digest)
    if narrow.worker is not None:
        # some collations ignore trailing spaces; a full stop at the end makes them count
        query = query.where(jobs.c.worker.concat(".") == narrow.worker + ".")
    if narrow.category is not None:
        query = query.where(jobs.c.category == narrow.category)
    if narrow.created_after is not None:
        query = query.where(jobs.c.created_at >= narrow.created_after)
    if narrow.created_before is not None:
        query = query.where(jobs.c.created_at < narrow.created_before)
    return query


def _referenced(query: Select[Any], kind: int, digest: bytes) -> tuple[Select[Any], Any]:
    refs = job_refs.alias()
    return query.join(refs, refs.c.job_id == jobs.c.id).where(
        refs.c.kind == kind, refs.c.digest == digest
    ), refs.c.job_id


# -- pages of jobs ---------------------------------------------------------------------------------------------------------


def _told() -> Select[Any]:
    return select(*HOT, *_REFERENCED).outerjoin_from(jobs, job_contents, job_contents.c.job_id == jobs.c.id)


def select_few(tx: Tx, flow_ids: Sequence[int] | None, state: State | None) -> list[bytes] | None:
    """Ids of all jobs of these flows in this state, or None if they are more than `FEW`. By the claim index alone where
    flows are named, else by the due index alone. No order.
    """
    query = narrowed(select(jobs.c.id), Narrow(None if flow_ids is None else tuple(flow_ids), state)).limit(FEW + 1)
    index = DUE_INDEX if flow_ids is None else CLAIM_INDEX
    found = [row.id for row in tx.conn.execute(tx.dialect.force_index(query, jobs, index))]
    return None if len(found) > FEW else found


def select_page_of(tx: Tx, ids: Sequence[bytes], narrow: Narrow, most: int) -> Rows:
    """Those of these jobs that the filter fits, newest first. By primary key."""
    query = narrowed(_told(), narrow).where(jobs.c.id.in_(IDS)).order_by(jobs.c.id.desc()).limit(most)
    return tx.conn.execute(query, {"ids": list(ids)}).all()


def select_page_by_references(tx: Tx, narrow: Narrow, after: bytes | None, most: int) -> Rows:
    """Jobs with these references, newest first. By the primary key of the first one's rows, in whose order they come."""
    (kind, digest), *others = narrow.references
    query, job_id = _referenced(_told(), kind, digest)
    query = narrowed(query, replace(narrow, references=tuple(others)))
    if after is not None:
        query = query.where(job_id < after)
    return tx.conn.execute(query.order_by(job_id.desc()).limit(most)).all()


def select_floor(tx: Tx, least: bytes | None, after: bytes | None) -> bytes | None:
    """The id `WINDOW` jobs below `after`, or None if there are not so many. By primary key alone."""
    query = _between(select(jobs.c.id), least, after).order_by(jobs.c.id.desc()).limit(1).offset(WINDOW)
    return tx.conn.execute(query).scalar_one_or_none()


def select_page(tx: Tx, narrow: Narrow, least: bytes | None, after: bytes | None, most: int) -> Rows:
    """Jobs with `least` <= id < `after` that the filter fits, newest first. By primary key."""
    query = _between(narrowed(_told(), narrow), least, after)
    query = (
        tx.dialect.force_index(query, jobs, "PRIMARY")
        if narrow.flow_ids is not None or narrow.state is not None
        else query
    )
    return tx.conn.execute(query.order_by(jobs.c.id.desc()).limit(most)).all()


def select_created_below(tx: Tx, job_id: bytes) -> int | None:
    """When the next older job than this id was made; by primary key."""
    query = select(jobs.c.created_at).where(jobs.c.id < job_id).order_by(jobs.c.id.desc()).limit(1)
    return tx.conn.execute(query).scalar_one_or_none()


def select_created_above(tx: Tx, job_id: bytes) -> int | None:
    """When the next newer job than this id was made; by primary key."""
    query = select(jobs.c.created_at).where(jobs.c.id >= job_id).order_by(jobs.c.id).limit(1)
    return tx.conn.execute(query).scalar_one_or_none()


def _between(query: Select[Any], least: bytes | None, after: bytes | None) -> Select[Any]:
    if least is not None:
        query = query.where(jobs.c.id >= least)
    return query if after is None else query.where(jobs.c.id < after)


# -- one job ---------------------------------------------------------------------------------------------------------------


def select_job(tx: Tx, job_id: bytes) -> Any:
    """The hot row of one job; by primary key."""
    return tx.conn.execute(select(*HOT).where(jobs.c.id == job_id)).one_or_none()


def select_told(tx: Tx, job_id: bytes, *, payload: bool) -> Any:
    """What the enqueue left of one job, with its payload only if asked for; by primary key."""
    columns = [*_REFERENCED, job_contents.c.traceparent, job_contents.c.request_id, job_contents.c.created_by]
    if payload:
        columns.append(job_contents.c.payload)
    return tx.conn.execute(select(*columns).where(job_contents.c.job_id == job_id)).one_or_none()


def select_result(tx: Tx, job_id: bytes) -> bytes | None:
    return tx.conn.execute(select(job_results.c.result).where(job_results.c.job_id == job_id)).scalar_one_or_none()


def select_progress(tx: Tx, job_id: bytes) -> bytes | None:
    return tx.conn.execute(select(job_progress.c.progress).where(job_progress.c.job_id == job_id)).scalar_one_or_none()


def select_events(tx: Tx, job_id: bytes) -> Rows:
    """The newest `MOST_EVENTS` stored events of one job, newest first; by the events' primary key."""
    query = select(job_events).where(job_events.c.job_id == job_id)
    return tx.conn.execute(query.order_by(job_events.c.at.desc(), job_events.c.id.desc()).limit(MOST_EVENTS)).all()


def count_ahead(tx: Tx, row: Any, most: int) -> int:
    """How many available jobs of its flow come before this one, counted up to `most`; by the claim index alone."""
    sooner = (jobs.c.priority < row.priority) | (
        (jobs.c.priority == row.priority)
        & (
            (jobs.c.available_at < row.available_at)
            | ((jobs.c.available_at == row.available_at) & (jobs.c.id < row.id))
        )
    )
    some = select(literal(1).label("one")).where(
        jobs.c.flow_id == row.flow_id, jobs.c.state == State.AVAILABLE, jobs.c.priority <= row.priority, sooner
    )
    return int(tx.conn.execute(select(func.count()).select_from(some.limit(most).subquery())).scalar_one())


# -- queues ----------------------------------------------------------------------------------------------------------------


def select_all_flows(tx: Tx) -> Rows:
    """(id, queue, type, schema_version) of every flow; a small table."""
    return tx.conn.execute(select(flows.c.id, flows.c.queue, flows.c.type, flows.c.schema_version)).all()


def select_queue(tx: Tx, name: str) -> Any:
    """The row of one queue; by primary key."""
    return tx.conn.execute(select(queues).where(queues.c.name == name)).one_or_none()


def select_queues(tx: Tx, after: str | None, most: int | None) -> Rows:
    """Queues by name, from the one after `after` on, `most` None for all; by primary key. A small table."""
    query = select(queues).order_by(queues.c.name).limit(most)
    return tx.conn.execute(query if after is None else query.where(queues.c.name > after)).all()
