"""Reading messages: one with its history, pages by filter, and figures. Nothing here locks or changes anything."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.access import Principal
from app.clock import seconds
from app.db.tx import Tx
from app.errors import Refusal, not_found
from app.primitives.outbox.model.keys import key_digest
from app.primitives.outbox.model.records import Asked, Doubted, Event, Filter, Message, MessageDetail
from app.primitives.outbox.model.states import STATE_NAMES, Check, Doubt, Kind, State
from app.primitives.outbox.ops import flows
from app.primitives.outbox.ops.records import message_of, told
from app.primitives.outbox.ops.refusals import out_of_pattern
from app.primitives.outbox.store import checks, doubts, work
from app.primitives.outbox.store import flows as flow_store
from app.primitives.outbox.store import reading as store
from app.primitives.outbox.store.reading import Narrow

MOST_COUNTED = 10_000
_ENDS_A_HOLDING = frozenset({Kind.RETRIED, Kind.REJECTED, Kind.UNKNOWN, Kind.RELEASED, Kind.ABANDONED})
# what comes first of two events of one moment
_RANK: dict[str, int] = {Kind.RECORDED: 0, Kind.CLAIMED: 1, Kind.DEAD: 3}


@dataclass(frozen=True, slots=True)
class Get:
    """One message. `payload`: whether it is wanted; that the caller may have it is checked before."""

    id: bytes
    principal: Principal
    payload: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """One page: up to `limit` messages with ids below `after`."""

    filter: Filter
    principal: Principal
    limit: int = 50
    after: bytes | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """`after` is where the next page begins, None if there is none. A page may be short, or empty, and not the last."""

    messages: tuple[Message, ...] = ()
    after: bytes | None = None


@dataclass(slots=True)
class DestinationFigures:
    """Messages of one destination by the name of their state; since when the oldest could have been claimed."""

    destination: str
    counts: Counter[str] = field(default_factory=Counter)
    oldest_pending_age_seconds: float | None = None
    needs_operator: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    destinations: tuple[DestinationFigures, ...]
    set_aside: int


def get(tx: Tx, command: Get) -> MessageDetail | Refusal:
    """One message with all that happened to it, oldest first.

    Raises: as values `not_found`, and `forbidden` for a destination outside the key's patterns.
    """
    row = store.select_message(tx, command.id)
    if row is None:
        return not_found("message")
    names = flows.Names(tx)
    if not command.principal.allows(names[row.flow_id][0]):
        return out_of_pattern()
    (message,) = _with_doubts(tx, [told(message_of(row, names), row)])
    return MessageDetail(
        message=message,
        check=_asked(tx, row) if message.state is State.PREPARED else None,
        doubt=_doubted(tx, row) if message.state is State.UNKNOWN else None,
        events=_history(row, store.select_events(tx, command.id)),
        traceparent=row.traceparent,
        request_id=row.request_id,
        created_by=row.created_by,
        payload=store.select_payload(tx, command.id) if command.payload else None,
    )


def _history(row: Any, stored: Sequence[Any]) -> tuple[Event, ...]:
    """The stored events, and those that the message's own row tells: recorded, claimed, sent."""
    events = [Event(row.created_at, Kind.RECORDED, actor=row.created_by, request_id=row.request_id)]
    claims: dict[int, Event] = {}
    for event in stored:
        if event.kind in _ENDS_A_HOLDING and event.claimed_at is not None:
            claims[event.fence] = Event(event.claimed_at, Kind.CLAIMED, event.attempt, event.fence, event.worker)
        events.append(
            Event(
                event.at, event.kind, event.attempt, event.fence, event.worker, event.category, event.message,
                event.reference, event.actor, event.request_id, event.detail,
            )
        )  # fmt: skip
    acknowledged = row.state == State.SENT and row.settlement_digest is not None
    if row.state == State.SENDING or acknowledged:
        claims[row.fence] = Event(row.claimed_at, Kind.CLAIMED, row.attempt, row.fence, row.worker)
    if acknowledged:
        events.append(
            Event(
                row.ended_at, Kind.SENT, row.attempt, row.fence, row.worker, reference=row.reference,
                request_id=row.ended_request_id,
            )
        )  # fmt: skip
    return tuple(sorted([*events, *claims.values()], key=lambda event: (event.at, _RANK.get(event.kind, 2))))


def _asked(tx: Tx, row: Any) -> Asked | None:
    found = checks.select_checks(tx, [row.id])
    return Asked(found[0].asked, found[0].answer, found[0].answered_at, row.due_at) if found else None


def _doubted(tx: Tx, row: Any) -> Doubted | None:
    for found in doubts.select_doubts(tx, [row.id]):
        held_by = found.worker or ("job" if found.job_id else "service") if found.state == Doubt.HELD else None
        return Doubted(found.opened_at, found.attempt, held_by, found.due_at)
    return None


def _with_doubts(tx: Tx, messages: Sequence[Message]) -> list[Message]:
    """With who must find out about them, and until when their producers may decide."""
    unknown = [one.id for one in messages if one.state is State.UNKNOWN]
    prepared = [one.id for one in messages if one.state is State.PREPARED]
    rows = doubts.select_doubts(tx, unknown) if unknown else ()
    open_ = {bytes(row.message_id): row for row in (checks.select_checks(tx, prepared) if prepared else ())}
    needs = {bytes(row.message_id) for row in rows if row.state == Doubt.OPERATOR}
    needs |= {one for one, row in open_.items() if row.state == Check.OPERATOR}
    until = {one: row.decide_at for one, row in open_.items()}
    return [
        replace(one, needs_operator=one.id in needs, decide_at=until.get(one.id))
        if one.id in needs or one.id in until
        else one
        for one in messages
    ]


def list_messages(tx: Tx, command: Listing) -> Page:
    """One page of the messages that the filter fits and the key's patterns allow, newest first."""
    wanted = command.filter
    narrow = Narrow(
        _flow_ids(tx, wanted, command.principal), None if wanted.state is None else STATE_NAMES[wanted.state]
    )
    if narrow.flow_ids == ():
        return Page()
    most = command.limit + 1
    if wanted.message_key is not None:
        ids: list[bytes] | None = [
            bytes(row.message_id) for row in work.select_keys(tx, [key_digest(wanted.message_key)])
        ]
    elif narrow == Narrow():
        ids = None
    else:
        ids = store.select_few(tx, narrow)
    if ids is not None:
        left = [one for one in ids if command.after is None or one < command.after]
        return _page(tx, store.select_page_of(tx, left, narrow, most) if left else (), command.limit)
    floor = None if narrow == Narrow() else store.select_floor(tx, command.after)
    page = _page(tx, store.select_page(tx, narrow, floor, command.after, most), command.limit)
    return page if page.after is not None else replace(page, after=floor)


def _page(tx: Tx, rows: Sequence[Any], limit: int) -> Page:
    shown, names = rows[:limit], flows.Names(tx)
    found = _with_doubts(tx, [told(message_of(row, names), row) for row in shown])
    return Page(tuple(found), bytes(shown[-1].id) if len(rows) > limit else None)


def _flow_ids(tx: Tx, wanted: Filter, principal: Principal) -> tuple[int, ...] | None:
    if wanted.destination is None and wanted.type is None and not principal.patterns:
        return None
    return tuple(
        row.id
        for row in flow_store.select_flows(tx)
        if wanted.destination in (None, row.destination)
        and wanted.type in (None, row.type)
        and principal.allows(row.destination)
    )


def stats(tx: Tx, principal: Principal) -> Stats:
    """Counts by destination and state, and the age of the oldest pending message of each."""
    names = flows.Names(tx)
    found: dict[str, DestinationFigures] = {}
    oldest: dict[str, int] = defaultdict(lambda: tx.now)
    for row in store.select_counts(tx):
        destination = names[row.flow_id][0]
        if principal.allows(destination):
            figures = found.setdefault(destination, DestinationFigures(destination))
            figures.counts[State(row.state).text] += row.amount
            if row.state == State.PENDING:
                oldest[destination] = min(oldest[destination], row.oldest)
                figures.oldest_pending_age_seconds = seconds(max(0, tx.now - oldest[destination]))
    for row in (*doubts.count_needing_operator(tx), *checks.count_needing_operator(tx)):
        if (destination := names[row.flow_id][0]) in found:
            found[destination].needs_operator += row.amount
    return Stats(tuple(found[name] for name in sorted(found)), store.count_set_aside(tx, MOST_COUNTED))
