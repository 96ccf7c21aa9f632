"""Jobs as values: states, commands, outcomes, backoff. Pure; nothing here touches a database."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from uuid import UUID

from uuid_utils import uuid7

from app.access import Principal
from app.clock import micros

NO_HANDLERS: tuple[tuple[str, tuple[int, ...]], ...] = ()


class State(IntEnum):
    """Numbers are what the database holds; they never change their meaning."""

    AVAILABLE = 0
    RUNNING = 1
    SCHEDULED = 2
    SUCCEEDED = 4
    DEAD = 5
    CANCELLED = 6
    UNKNOWN = 7

    @property
    def text(self) -> str:
        return self.name.lower()


WAITING = (State.AVAILABLE, State.SCHEDULED)
ENDED = (State.SUCCEEDED, State.DEAD, State.CANCELLED)
STATE_NAMES = {state.text: state for state in State}


class Kind(StrEnum):
    """Kinds of events. `enqueued`, `claimed` and `succeeded` are told by the job's own row, the others are stored."""

    ENQUEUED = "enqueued"
    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RELEASED = "released"
    ABANDONED = "abandoned"
    DEAD = "dead"
    CANCEL_REQUESTED = "cancel_requested"
    CANCELLED = "cancelled"
    RETRIED = "retried"
    RECONCILED = "reconciled"


class Outcome(StrEnum):
    """How a worker settles."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RELEASED = "released"


class ReleaseReason(StrEnum):
    SHUTDOWN = "shutdown"
    THROTTLED = "throttled"
    UNSUPPORTED = "unsupported"
    OTHER = "other"


class Verdict(StrEnum):
    SUCCEEDED = "succeeded"
    RETRY = "retry"
    DEAD = "dead"


Flow = tuple[str, str, int]  # queue, type, schema_version


def new_id() -> bytes:
    """A fresh UUIDv7; made before the first try of what it names."""
    return uuid7().bytes


def id_text(raw: bytes) -> str:
    return str(UUID(bytes=raw))


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request; stored with what it did."""

    principal: Principal
    request_id: str
    traceparent: str | None = None
    tracestate: str | None = None


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as enqueued. None means: by the settings. Durations and moments are microseconds."""

    id: bytes
    flow: Flow
    payload: bytes
    priority: int = 0
    available_at: int | None = None
    delay: int | None = None
    max_attempts: int | None = None
    timeout: int | None = None
    retry_until: int | None = None
    key_digest: bytes | None = None
    fingerprint: bytes | None = None
    correlation_id: str | None = None
    parent_operation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Enqueue:
    """One request's jobs. Outcome: one `Enqueued` or `Refusal` for each, in order."""

    jobs: tuple[NewJob, ...]
    caller: Caller


@dataclass(frozen=True, slots=True)
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
    max_attempts: int
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


@dataclass(frozen=True, slots=True)
class Enqueued:
    """`replayed`: the idempotency key was there with the same content, and this is its job."""

    job: Job
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """A request for work. `handlers`: (type, versions) pairs, or none for any. `lease` in microseconds."""

    queues: tuple[str, ...]
    handlers: tuple[tuple[str, tuple[int, ...]], ...]
    worker: str
    limit: int
    lease: int
    caller: Caller
    claim_id: str | None = None

    @property
    def places(self) -> Sequence[Hashable]:
        return self.queues

    @property
    def identity(self) -> Hashable | None:
        return None if self.claim_id is None else (self.caller.principal.key_id, self.claim_id)

    def wants(self, flow: Hashable) -> bool:
        """Whether a flow's work may be given to this caller."""
        queue, type_, version = flow  # type: ignore[misc]  # a desk of jobs signals Flow tuples only
        return queue in self.queues and self.handles(type_, version)

    def handles(self, type_: str, version: int) -> bool:
        return not self.handlers or any(type_ == name and version in versions for name, versions in self.handlers)


@dataclass(frozen=True, slots=True)
class Granted:
    """One job in a worker's hands."""

    id: bytes
    flow: Flow
    payload: bytes
    priority: int
    attempt: int
    max_attempts: int
    timeout: int
    correlation_id: str | None
    parent_operation_id: str | None
    traceparent: str | None
    token: str
    fence: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to a claim."""

    grants: tuple[Granted, ...] = ()
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Settlement:
    """One result of one attempt. `digest` is over all its content, for telling a repeat from a contradiction."""

    id: bytes
    token: str
    outcome: Outcome
    digest: bytes
    result: bytes | None = None
    category: str | None = None
    message: str | None = None
    reference: str | None = None
    retry: bool = False
    delay: int | None = None
    reason: ReleaseReason | None = None


@dataclass(frozen=True, slots=True)
class Settle:
    """One request's settlements. Outcome: one `Settled` or `Refusal` for each, in order."""

    items: tuple[Settlement, ...]
    caller: Caller


@dataclass(frozen=True, slots=True)
class Settled:
    """`state` is the job's now. `available_at` is set where it will run again."""

    id: bytes
    state: State
    attempt: int
    available_at: int | None = None
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Beat:
    """One renewal. `lease` in microseconds."""

    id: bytes
    token: str
    lease: int
    progress: bytes | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    """One request's renewals. Outcome: one `Renewed` or `Refusal` for each, in order."""

    beats: tuple[Beat, ...]
    caller: Caller


@dataclass(frozen=True, slots=True)
class Renewed:
    id: bytes
    expires_at: int
    cancel_requested: bool
    cancel_reason: str | None
    release_requested: bool = False


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


class Figure(IntEnum):
    """Amounts kept per flow and minute. Durations: sum in microseconds, and counts by power-of-two buckets from 32 on."""

    CLAIMED = 0
    SUCCEEDED = 1
    FAILED = 2
    RETRIED = 3
    DEAD = 4
    ABANDONED = 5
    DURATION = 6


DURATION_BUCKET = 32


def duration_bucket(duration: int) -> int:
    """The figure that counts this duration: an eighth of a power of two wide, so a percentile is within 10 %."""
    if duration < 8:
        return DURATION_BUCKET + max(0, duration)
    power = duration.bit_length() - 1
    return DURATION_BUCKET + 8 * (power - 2) + ((duration >> (power - 3)) & 7)


def bucket_ceiling(figure: int) -> int:
    """The longest duration that `duration_bucket` puts there."""
    place = figure - DURATION_BUCKET
    if place < 8:
        return place
    power, eighth = place // 8 + 2, place % 8
    return ((8 + eighth + 1) << (power - 3)) - 1


def backoff(pauses: Sequence[float], failures: int, *, spread: float | None = None) -> int:
    """Microseconds until the next attempt after so many failures (from 1): escalating, the last pause repeats, with up to
    a fifth of jitter on top, so that what failed together does not come back together."""
    pause = pauses[min(max(failures, 1), len(pauses)) - 1]
    return micros(pause * (1 + 0.2 * (random.random() if spread is None else spread)))


@dataclass(slots=True)
class QueueView:
    """A queue as it is told."""

    name: str
    paused_at: int | None
    paused_reason: str | None
    max_depth: int | None
    retention_seconds: int | None
    description: str
    created_at: int
    updated_at: int
    counts: dict[str, int] = field(default_factory=dict)
