"""A job as it is stored and told, and what an operator asks about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.access import Caller
from app.primitives.jobs.model.keys import NO_KEYS, KeysTold
from app.primitives.jobs.model.states import Flow, State, Verdict
from app.record import record


@record
class Job:
    """A job's hot row joined with its flow."""

    id: bytes
    flow: Flow
    state: State
    priority: int
    available_at: int
    due_at: int | None
    fence: int
    attempt: int
    lease_losses: int
    releases: int
    throttles: int
    max_attempts: int | None  # None: no ceiling
    timeout: int
    retry_until: int | None
    created_at: int
    claimed_at: int | None = None
    ended_at: int | None = None
    cancel_requested_at: int | None = None
    worker: str | None = None
    category: str | None = None
    ended_request_id: str | None = None
    correlation_id: str | None = None
    parent_operation_id: str | None = None
    marks: int = 0
    lease: int | None = None  # of a claim that asks for none; known at the enqueue alone
    keys: KeysTold = NO_KEYS  # only where a job is told with them


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a job, as it is told."""

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
class JobDetail:
    """A job with everything about it that may be told."""

    job: Job
    events: tuple[Event, ...]
    traceparent: str | None
    request_id: str
    created_by: str
    progress: bytes | None = None
    payload: bytes | None = None
    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """What the list and the bulk actions may be narrowed by."""

    queue: str | None = None
    type: str | None = None
    state: State | None = None
    correlation_id: str | None = None
    parent_operation_id: str | None = None
    worker: str | None = None
    category: str | None = None
    created_after: int | None = None
    created_before: int | None = None


@dataclass(frozen=True, slots=True)
class Control:
    """An operator's action on one job: cancel, retry or reconcile."""

    id: bytes
    caller: Caller
    reason: str = ""
    verdict: Verdict | None = None
    evidence: bytes | None = None
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class Controlled:
    job: Job
    replayed: bool = False


@dataclass(slots=True)
class QueueView:
    """A queue as it is told."""

    name: str
    paused_at: int | None
    paused_reason: str | None
    max_depth: int | None
    retention_seconds: int | None
    contract_policy: str | None
    description: str
    created_at: int
    updated_at: int
    counts: dict[str, int] = field(default_factory=dict)
