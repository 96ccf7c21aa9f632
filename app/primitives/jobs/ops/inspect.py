"""Reading jobs: one with its history, and pages by filter. Nothing here locks or changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.access import Principal
from app.clock import micros
from app.db.tx import Tx
from app.errors import Refusal, not_found
from app.primitives.jobs.model import Event, Filter, Flow, Job, JobDetail, Kind, State
from app.primitives.jobs.ops import flows
from app.primitives.jobs.ops.records import job_of, referring
from app.primitives.jobs.ops.refusals import out_of_pattern
from app.primitives.jobs.ops.replacing import CORRELATION, PARENT, reference
from app.primitives.jobs.ops.told import with_keys
from app.primitives.jobs.store import lists as store
from app.primitives.jobs.store.lists import Narrow

SLACK = micros(
    86_400
)  # ids are made by the replicas' clocks, `created_at` by the database's; no further apart than this
_ENDS_AN_ATTEMPT = frozenset({Kind.FAILED, Kind.UNKNOWN, Kind.RELEASED, Kind.ABANDONED})


@dataclass(frozen=True, slots=True)
class Get:
    """One job. `payload`, `result`: whether these are wanted; that the caller may have them is checked before."""

    id: bytes
    principal: Principal
    payload: bool = False
    result: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """One page: up to `limit` jobs with ids below `after`."""

    filter: Filter
    principal: Principal
    limit: int = 50
    after: bytes | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """`after` is where the next page begins, None if there is none. A page may be short, or empty, and not the last."""

    jobs: tuple[Job, ...] = ()
    after: bytes | None = None


def get(tx: Tx, command: Get) -> JobDetail | Refusal:
    """One job with all that happened to it, oldest first.

    Raises: as values `not_found`, and `forbidden` for a queue outside the key's patterns.
    """
    row = store.select_job(tx, command.id)
    told = None if row is None else store.select_told(tx, command.id, payload=command.payload)
    if told is None:
        return not_found("job")
    names = flows.names(tx, [row.flow_id])
    if not command.principal.allows(names[row.flow_id][0]):
        return out_of_pattern()
    return JobDetail(
        job=with_keys(tx, [referring(job_of(row, names), told)])[0],
        events=_history(row, told, store.select_events(tx, command.id)),
        traceparent=told.traceparent,
        request_id=told.request_id,
        created_by=told.created_by,
        progress=store.select_progress(tx, command.id),
        payload=told.payload if command.payload else None,
        result=store.select_result(tx, command.id) if command.result else None,
    )


def _history(row: Any, told: Any, stored: Sequence[Any]) -> tuple[Event, ...]:
    """The stored events, and those that the job's own row tells: enqueued, claimed, succeeded."""
    events = [Event(row.created_at, Kind.ENQUEUED, actor=told.created_by, request_id=told.request_id)]
    claims: dict[int, Event] = {}
    for event in reversed(stored):
        if event.kind in _ENDS_AN_ATTEMPT and event.claimed_at is not None:
            claims[event.fence] = _claimed(event, event.attempt)
        events.append(
            Event(
                event.at,
                event.kind,
                event.attempt,
                event.fence,
                event.worker,
                event.category,
                event.message,
                event.reference,
                event.actor,
                event.request_id,
                event.detail,
            )
        )
    judged = any(event.kind == Kind.RECONCILED and event.fence == row.fence for event in stored)
    if row.state == State.RUNNING or (row.state == State.SUCCEEDED and not judged):
        claims[row.fence] = _claimed(row, row.attempt)
    if row.state == State.SUCCEEDED and not judged:
        events.append(
            Event(row.ended_at, Kind.SUCCEEDED, row.attempt, row.fence, row.worker, request_id=row.ended_request_id)
        )
    events += claims.values()
    return tuple(sorted(events, key=lambda event: (event.at, _RANK.get(event.kind, 2))))


# what comes first of two events of one moment
_RANK: dict[str, int] = {Kind.ENQUEUED: 0, Kind.CLAIMED: 1}


def _claimed(row: Any, attempt: int) -> Event:
    return Event(row.claimed_at, Kind.CLAIMED, attempt, row.fence, row.worker)


# -- pages -----------------------------------------------------------------------------------------------------------------


def list_jobs(tx: Tx, command: Listing) -> Page:
    """One page of the jobs that the filter fits and the key's patterns allow, newest first.

    By references if any are named (primary key of `job_refs`); else by the claim index (a flow) or the due index (a state)
    where these hold few jobs; else by primary key, at most `store.WINDOW` rows for a page.
    """
    narrow = narrow_of(tx, command.filter, command.principal)
    if narrow.flow_ids == ():
        return Page()
    most = command.limit + 1
    if narrow.references:
        return _page(tx, store.select_page_by_references(tx, narrow, command.after, most), command.limit)
    if narrow.flow_ids is not None or narrow.state is not None:
        few = store.select_few(tx, narrow.flow_ids, narrow.state)
        if few is not None:
            ids = [job_id for job_id in few if command.after is None or job_id < command.after]
            return _page(tx, store.select_page_of(tx, ids, narrow, most) if ids else (), command.limit)
    return _scan(tx, command, narrow, most)


def _scan(tx: Tx, command: Listing, narrow: Narrow, most: int) -> Page:
    least, after = _bounds(tx, narrow, command.after)
    floor = None if narrow == Narrow() else store.select_floor(tx, least, after)
    rows = store.select_page(tx, narrow, floor or least, after, most)
    page = _page(tx, rows, command.limit)
    return page if page.after is not None else replace(page, after=floor)


def _bounds(tx: Tx, narrow: Narrow, after: bytes | None) -> tuple[bytes | None, bytes | None]:
    """Where to begin and to end so that jobs made long before or after the wanted time are not even looked at.

    An id begins with the moment of its making by some replica's clock. It is only believed where the job next to it confirms
    by the database's clock that what lies beyond is not wanted.
    """
    least = None
    if narrow.created_after is not None:
        edge = _first_id(narrow.created_after - SLACK)
        created = store.select_created_below(tx, edge)
        least = edge if created is None or created < narrow.created_after else None
    if narrow.created_before is not None:
        edge = _first_id(narrow.created_before + SLACK)
        created = store.select_created_above(tx, edge)
        if created is not None and created >= narrow.created_before and (after is None or edge < after):
            after = edge
    return least, after


def _first_id(moment: int) -> bytes:
    """The least UUIDv7 of this moment."""
    return (max(0, moment) // 1000).to_bytes(6, "big") + bytes(10)


def _page(tx: Tx, rows: Sequence[Any], limit: int) -> Page:
    shown = rows[:limit]
    names = flows.names(tx, {row.flow_id for row in shown})
    found = [referring(job_of(row, names), row) for row in shown]
    return Page(with_keys(tx, found), shown[-1].id if len(rows) > limit else None)


def narrow_of(tx: Tx, wanted: Filter, principal: Principal) -> Narrow:
    """The filter in the words of the tables, within the key's patterns. No flow at all: `flow_ids` is empty."""
    references = [(CORRELATION, wanted.correlation_id), (PARENT, wanted.parent_operation_id)]
    return Narrow(
        flow_ids=_flow_ids(tx, wanted, principal),
        state=wanted.state,
        references=tuple((kind, reference(text)) for kind, text in references if text is not None),
        worker=wanted.worker,
        category=wanted.category,
        created_after=wanted.created_after,
        created_before=wanted.created_before,
    )


def _flow_ids(tx: Tx, wanted: Filter, principal: Principal) -> tuple[int, ...] | None:
    if wanted.queue is None and wanted.type is None and not principal.patterns:
        return None

    def fits(flow: Flow) -> bool:
        queue, type_, _ = flow
        return wanted.queue in (None, queue) and wanted.type in (None, type_) and principal.allows(queue)

    rows = store.select_all_flows(tx)
    return tuple(row.id for row in rows if fits((row.queue, row.type, row.schema_version)))
