"""What producers and workers ask, and what they are answered."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from app.access import Caller
from app.errors import Refusal
from app.primitives.jobs.model.keys import Concurrency, Debounce, Unique
from app.primitives.jobs.model.records import Job
from app.primitives.jobs.model.states import Flow, Mark, Outcome, ReleaseReason, State
from app.record import record


@record
class NewJob:
    """A job as enqueued. None means: by the terms of its type, then by the settings. Durations and moments are microseconds."""

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
    unique: Unique | None = None
    debounce: Debounce | None = None
    concurrency: Concurrency | None = None
    handles_death: bool = False  # it is a terminal handler

    @property
    def sole(self) -> Unique | Debounce | None:
        """The key that keeps other jobs of its type out; a job has one of the two at most."""
        return self.unique or self.debounce

    @property
    def marks(self) -> int:
        """Its `Mark`s."""
        keys = (self.sole.mark if self.sole else 0) | (Mark.CONCURRENCY if self.concurrency else 0)
        return keys | (Mark.TERMINAL_HANDLER if self.handles_death else 0)


@record
class Enqueue:
    """One request's jobs. Outcome: one `Enqueued` or `Refusal` for each, in order."""

    jobs: tuple[NewJob, ...]
    caller: Caller


@record
class Enqueued:
    """`replayed`: the idempotency key was there with the same content, and this is its job. `deduplicated`: this job was
    there before, and holds the unique or debounce key. `warning`: what a stricter policy of the queue would have refused it
    for.
    """

    job: Job
    replayed: bool = False
    deduplicated: bool = False
    warning: Refusal | None = None


@record
class Claim:
    """A request for work. `handlers`: (type, versions) pairs, or none for any. `lease` in microseconds; None: by the terms of
    each job's type, then by the settings.
    """

    queues: tuple[str, ...]
    handlers: tuple[tuple[str, tuple[int, ...]], ...]
    worker: str
    limit: int
    lease: int | None
    caller: Caller
    claim_id: str | None = None

    @property
    def places(self) -> Sequence[Hashable]:
        return self.queues

    @property
    def identity(self) -> Hashable | None:
        return None if self.claim_id is None else (self.caller.principal.key_id, self.claim_id)

    def wants(self, flow: Flow) -> bool:
        """Whether a flow's work may be given to this caller."""
        queue, type_, version = flow
        return queue in self.queues and self.handles(type_, version)

    def handles(self, type_: str, version: int) -> bool:
        return not self.handlers or any(type_ == name and version in versions for name, versions in self.handlers)


@record
class Granted:
    """One job in a worker's hands."""

    id: bytes
    flow: Flow
    payload: bytes
    priority: int
    attempt: int
    max_attempts: int | None
    timeout: int
    correlation_id: str | None
    parent_operation_id: str | None
    traceparent: str | None
    token: str
    fence: int
    expires_at: int


@record
class Claimed:
    """The answer to a claim."""

    grants: tuple[Granted, ...] = ()
    replayed: bool = False


@record
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


@record
class Settle:
    """One request's settlements. Outcome: one `Settled` or `Refusal` for each, in order."""

    items: tuple[Settlement, ...]
    caller: Caller


@record
class Settled:
    """`state` is the job's now. `available_at` is set where it will run again."""

    id: bytes
    state: State
    attempt: int
    available_at: int | None = None
    replayed: bool = False


@record
class Beat:
    """One renewal. `lease` in microseconds; None: as long as the claim got."""

    id: bytes
    token: str
    lease: int | None
    progress: bytes | None = None


@record
class Renew:
    """One request's renewals. Outcome: one `Renewed` or `Refusal` for each, in order."""

    beats: tuple[Beat, ...]
    caller: Caller


@record
class Renewed:
    id: bytes
    expires_at: int
    cancel_requested: bool
    cancel_reason: str | None
    release_requested: bool = False


@record
class Round:
    """A worker's results together with its next claim. Outcome: `Worked`."""

    settle: Settle
    claim: Claim


@record
class Worked:
    """The results' outcomes in their order, and what was claimed at once."""

    settled: tuple[Settled | Refusal, ...]
    claimed: Claimed | Refusal
