"""A message as it is stored and told, and what operators ask about it."""

from __future__ import annotations

from dataclasses import dataclass

from app.access import Caller
from app.primitives.outbox.model.states import Flow, State, Verdict
from app.record import record


@record
class Message:
    """A message's hot row joined with its flow; what stands in its contents is None where these were not read."""

    id: bytes
    flow: Flow
    state: State
    available_at: int
    due_at: int | None
    fence: int
    attempt: int
    lease_losses: int
    releases: int
    max_attempts: int | None
    created_at: int
    claimed_at: int | None = None
    ended_at: int | None = None
    worker: str | None = None
    category: str | None = None
    reference: str | None = None
    message_key: str | None = None
    schema_version: int | None = None
    occurred_at: int | None = None
    ordering_key: str | None = None
    correlation_id: str | None = None
    target_reference: str | None = None
    needs_operator: bool = False
    decide_at: int | None = None  # while it is prepared


@record
class Asked:
    """What asking the producer of a prepared message has brought so far."""

    asked: int
    answer: str | None
    answered_at: int | None
    next_at: int | None


@record
class Doubted:
    """How the finding out about an unknown message stands. `next_at`: when it is looked at next; None: now, or no more."""

    since: int
    asked: int
    held_by: str | None
    next_at: int | None


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a message, as it is told."""

    at: int
    kind: str
    attempt: int | None = None
    fence: int | None = None
    worker: str | None = None
    category: str | None = None
    message: str | None = None
    reference: str | None = None
    actor: str | None = None
    request_id: str | None = None
    detail: bytes | None = None


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """A message with everything about it that may be told."""

    message: Message
    events: tuple[Event, ...]
    traceparent: str | None
    request_id: str
    created_by: str
    payload: bytes | None = None
    check: Asked | None = None
    doubt: Doubted | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """What the list may be narrowed by."""

    destination: str | None = None
    type: str | None = None
    state: str | None = None
    message_key: str | None = None


@dataclass(frozen=True, slots=True)
class Reconcile:
    """A verdict on one unknown message."""

    id: bytes
    caller: Caller
    verdict: Verdict
    evidence: bytes
    reference: str | None = None
    reason: str | None = None
    # of a reconciler: its reservation, and what it said
    grant_digest: bytes | None = None
    settlement_digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class Reconciled:
    message: Message
    replayed: bool = False
