"""Messages as they are told. The models document; answers are plain values that the `*_view` functions make."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from pydantic import Field

from app.clock import to_text
from app.http.paging import PageRead
from app.ids import id_text
from app.jsontext import Moment, Read
from app.primitives.outbox.model.records import Asked, Doubted, Event, Message, MessageDetail
from app.primitives.outbox.model.states import ENDED, Kind, State
from app.primitives.outbox.schemas.parts import AT, ID


class MessageState(StrEnum):
    """The names of a message's states."""

    PREPARED = "prepared"
    PENDING = "pending"
    BLOCKED = "blocked"
    SENDING = "sending"
    SENT = "sent"
    UNKNOWN = "unknown"
    DEAD = "dead"
    ABORTED = "aborted"


class MessageRead(Read):
    """A message without its payload."""

    id: Annotated[str, Field(description="UUIDv7; sorts by the moment of the recording.", examples=[ID])]
    message_key: Annotated[
        str | None,
        Field(description="What the intent is known by.", examples=["order-123-submitted"]),
    ]
    destination: Annotated[str, Field(examples=["marketplace"])]
    type: Annotated[str, Field(examples=["order.submitted"])]
    schema_version: Annotated[int | None, Field(description="Version of the payload's shape.", examples=[1])]
    state: Annotated[
        MessageState,
        Field(
            description="`pending`: it can be claimed, or waits for its time or its backoff (see `available_at`). `blocked`: an "
            "earlier message of its ordering key is not done. `unknown`: it may have been accepted; it waits for a verdict."
        ),
    ]
    attempt: Annotated[int, Field(description="Attempts so far, the running one included.", examples=[1])]
    max_attempts: Annotated[
        int | None, Field(description="As recorded; null: as its destination says.", examples=[None])
    ]
    lease_losses: Annotated[int, Field(description="Attempts whose holder was lost.", examples=[0])]
    releases: Annotated[int, Field(description="Times that it was given back unworked.", examples=[0])]
    fence: Annotated[int, Field(description="Grows with every grant of this message.", examples=[1])]
    occurred_at: Annotated[Moment | None, Field(description="When it happened, as recorded.", examples=[AT])]
    available_at: Annotated[Moment, Field(description="When it may be sent, or could first have been.", examples=[AT])]
    created_at: Annotated[Moment, Field(examples=[AT])]
    claimed_at: Annotated[Moment | None, Field(description="When its newest attempt began.", examples=[AT])]
    expires_at: Annotated[Moment | None, Field(description="When the lease ends; only while sending.", examples=[AT])]
    ended_at: Annotated[Moment | None, Field(description="When it was sent, died or was aborted.", examples=[None])]
    purge_at: Annotated[Moment | None, Field(description="When an ended message may be forgotten.", examples=[None])]
    worker: Annotated[str | None, Field(description="Label of its newest holder.", examples=["sender-1"])]
    category: Annotated[str | None, Field(description="Category of the last real failure.", examples=[None])]
    provider_operation_id: Annotated[
        str | None, Field(description="What the destination knows the effect by.", examples=["ch_81f2"])
    ]
    ordering_key: Annotated[str | None, Field(examples=["order-123"])]
    correlation_id: Annotated[str | None, Field(examples=["order-123"])]
    target_reference: Annotated[str | None, Field(examples=["orders/123"])]
    needs_operator: Annotated[
        bool,
        Field(
            description="True if it is unknown or prepared, and nothing more is tried to find out: an operator must decide.",
            examples=[False],
        ),
    ]
    decide_at: Annotated[
        Moment | None,
        Field(description="Until when its producer may decide unasked; only while prepared.", examples=[None]),
    ]


class MessageEventRead(Read):
    """One thing that happened to a message."""

    at: Annotated[Moment, Field(examples=[AT])]
    kind: Annotated[
        str,
        Field(description=f"One of: {', '.join(f'`{kind}`' for kind in Kind)}. New kinds may come.", examples=["sent"]),
    ]
    attempt: Annotated[int | None, Field(examples=[1])]
    fence: Annotated[int | None, Field(examples=[1])]
    worker: Annotated[str | None, Field(examples=["sender-1"])]
    category: Annotated[str | None, Field(description="Of a failure, a late answer or a verdict.", examples=[None])]
    message: Annotated[str | None, Field(description="In words, for people.", examples=[None])]
    provider_operation_id: Annotated[str | None, Field(examples=[None])]
    actor: Annotated[str | None, Field(description="The API key that did it.", examples=[None])]
    request_id: Annotated[str | None, Field(examples=[None])]
    evidence: Annotated[Any, Field(description="Of a verdict; for operators.", examples=[None])]


class PreparedCheckRead(Read):
    """What asking the producer of a prepared message has brought."""

    asked: Annotated[int, Field(description="Answers that decided nothing.", examples=[1])]
    answer: Annotated[str | None, Field(description="The newest, in words.", examples=["undecided"])]
    answered_at: Annotated[Moment | None, Field(examples=[AT])]
    next_at: Annotated[Moment | None, Field(description="When it is asked next; null: no more.", examples=[AT])]


class ReconciliationRead(Read):
    """How the finding out about an unknown message stands."""

    since: Annotated[Moment, Field(description="When it became unknown.", examples=[AT])]
    asked: Annotated[int, Field(description="Tries so far.", examples=[1])]
    held_by: Annotated[str | None, Field(description="Who is finding out now.", examples=["reconciler-1"])]
    next_at: Annotated[
        Moment | None, Field(description="Until when it is held, or when it may be looked at again.", examples=[AT])
    ]


class MessageDetailRead(MessageRead):
    """A message with its history."""

    reconciliation: Annotated[ReconciliationRead | None, Field(description="Only while unknown.", examples=[None])]

    check: Annotated[PreparedCheckRead | None, Field(description="Only while prepared.", examples=[None])]

    traceparent: Annotated[str | None, Field(description="W3C trace context of the recording call.", examples=[None])]
    request_id: Annotated[str, Field(description="Of the call that recorded it; `sql` if a producer wrote it itself.")]
    created_by: Annotated[str, Field(description="The API key that recorded it; `sql` if a producer wrote it itself.")]
    events: Annotated[list[MessageEventRead], Field(description="Oldest first.")]
    payload: Annotated[Any, Field(description="Only with `include=payload`, byte for byte.", examples=[None])]


class MessageListRead(PageRead):
    """A page of messages."""

    items: list[MessageRead]


class DecidedMessage(MessageRead):
    """The message after the decision."""

    replayed: bool = Field(description="True if this decision was there before.")


class ReconciledRead(MessageRead):
    """The message after the verdict."""

    replayed: bool = Field(description="True if this verdict was there before.")


def _moment(at: int | None) -> str | None:
    return None if at is None else to_text(at)


def message_view(message: Message) -> dict[str, Any]:
    destination, type_ = message.flow
    return {
        "id": id_text(message.id),
        "message_key": message.message_key,
        "destination": destination,
        "type": type_,
        "schema_version": message.schema_version,
        "state": message.state.text,
        "attempt": message.attempt,
        "max_attempts": message.max_attempts,
        "lease_losses": message.lease_losses,
        "releases": message.releases,
        "fence": message.fence,
        "occurred_at": _moment(message.occurred_at),
        "available_at": to_text(message.available_at),
        "created_at": to_text(message.created_at),
        "claimed_at": _moment(message.claimed_at),
        "expires_at": _moment(message.due_at if message.state is State.SENDING else None),
        "ended_at": _moment(message.ended_at),
        "purge_at": _moment(message.due_at if message.state in ENDED else None),
        "worker": message.worker,
        "category": message.category,
        "provider_operation_id": message.reference,
        "ordering_key": message.ordering_key,
        "correlation_id": message.correlation_id,
        "target_reference": message.target_reference,
        "needs_operator": message.needs_operator,
        "decide_at": _moment(message.decide_at),
    }


def detail_view(detail: MessageDetail, *, evidence: bool) -> dict[str, Any]:
    return {
        **message_view(detail.message),
        "traceparent": detail.traceparent,
        "request_id": detail.request_id,
        "created_by": detail.created_by,
        "check": _check_view(detail.check),
        "reconciliation": _doubt_view(detail.doubt),
        "events": [_event_view(event, evidence=evidence) for event in detail.events],
        "payload": None if detail.payload is None else msgspec.Raw(detail.payload),
    }


def _check_view(check: Asked | None) -> dict[str, Any] | None:
    if check is None:
        return None
    return {
        "asked": check.asked,
        "answer": check.answer,
        "answered_at": _moment(check.answered_at),
        "next_at": _moment(check.next_at),
    }


def _doubt_view(doubt: Doubted | None) -> dict[str, Any] | None:
    if doubt is None:
        return None
    return {
        "since": to_text(doubt.since),
        "asked": doubt.asked,
        "held_by": doubt.held_by,
        "next_at": _moment(doubt.next_at),
    }


def _event_view(event: Event, *, evidence: bool) -> dict[str, Any]:
    shown = evidence and event.kind in (Kind.RECONCILED, Kind.UNDECIDED) and event.detail is not None
    return {
        "at": to_text(event.at),
        "kind": event.kind,
        "attempt": event.attempt,
        "fence": event.fence,
        "worker": event.worker,
        "category": event.category,
        "message": event.message,
        "provider_operation_id": event.reference,
        "actor": event.actor,
        "request_id": event.request_id,
        "evidence": msgspec.Raw(event.detail) if shown and event.detail is not None else None,
    }
