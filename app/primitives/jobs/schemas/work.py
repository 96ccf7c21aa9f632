"""What producers and workers send, and what they are answered. Sizes, units and defaults stand in the descriptions."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from app.jsontext import (
    Body,
    ClaimId,
    IdText,
    Key,
    Label,
    Moment,
    Name,
    Note,
    OpaqueJson,
    Read,
    Seconds,
    Token,
    wrong,
)
from app.primitives.jobs.model import Outcome, ReleaseReason
from app.primitives.jobs.schemas.views import JobRead

MOST_ITEMS = 1000
LEASE = Field(ge=5, le=3600, description="How long the reservation holds without a heartbeat; 5 to 3600 seconds.")
Version = Annotated[int, Field(ge=1, le=2_147_483_647)]
Reference = Annotated[str, Field(min_length=1, max_length=255)]


class EnqueueJob(Body):
    """One job. What is left out comes from the settings."""

    queue: Name = Field(description="The queue; it comes to be with its first job.", examples=["mail"])
    type: Name = Field(
        description="What kind of work it is; workers name the types that they handle.", examples=["mail.send"]
    )
    schema_version: Version = Field(
        1, description="Version of the payload's shape; workers name the versions that they handle."
    )
    payload: OpaqueJson = Field(
        description="Any JSON value, stored and handed out byte for byte.", examples=[{"to": "ada@example.org"}]
    )
    priority: int = Field(0, ge=-1000, le=1000, description="Smaller runs first.")
    available_at: Moment | None = Field(None, description="Not before this moment. Not together with `delay_seconds`.")
    delay_seconds: Seconds | None = Field(
        None, description="Not before so many seconds from now. Not together with `available_at`."
    )
    max_attempts: int | None = Field(None, ge=1, le=1000, description="How often it is tried at most.")
    timeout_seconds: float | None = Field(
        None,
        ge=1,
        le=604_800,
        description="Ceiling of one attempt, counted from its claim, whatever its heartbeats say.",
    )
    retry_until: Moment | None = Field(None, description="No attempt is planned after this moment.")
    idempotency_key: Key | None = Field(
        None,
        description="A repeat with the same key and content gives the same job; other content is a conflict.",
        examples=["order-123-mail"],
    )
    correlation_id: Reference | None = Field(None, description="Yours, to find related work by.")
    parent_operation_id: Reference | None = Field(None, description="Yours, the operation that this job is part of.")

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if self.available_at is not None and self.delay_seconds is not None:
            raise wrong("`available_at` and `delay_seconds` exclude each other")
        return self


class EnqueueBatch(Body):
    """Jobs that are enqueued in one commit."""

    jobs: Annotated[list[EnqueueJob], Field(min_length=1, max_length=MOST_ITEMS)] = Field(description="1 to 1000 jobs.")


class EnqueuedJob(JobRead):
    """The job, and whether it was there before."""

    replayed: bool = Field(description="True if the idempotency key made this job before.")
    deduplicated: bool = Field(description="True if a job with the same unique key was given instead of a new one.")


class EnqueueResult(Read):
    """One job of a batch: `job` if status is 200 or 201, else `problem`."""

    status: int
    job: EnqueuedJob | None
    problem: dict[str, Any] | None = Field(description="A problem as in an error answer.")


class EnqueueResults(Read):
    """One result for each job, in the order sent."""

    results: list[EnqueueResult]


class Handler(Body):
    """A job type and the versions of its payload that a worker can handle."""

    type: Name
    schema_versions: Annotated[list[Version], Field(min_length=1, max_length=64)]


class SettleItem(Body):
    """How one attempt ended. Which of the other fields may stand depends on `outcome`."""

    id: IdText
    token: Token
    outcome: Outcome
    result: OpaqueJson | None = Field(None, description="For `succeeded`: any JSON value, kept byte for byte.")
    category: Name | None = Field(
        None, description="For `failed` and `unknown` (needed): a stable class of the failure."
    )
    message: Note | None = Field(None, description="For `failed` and `unknown`: for people, up to 2000 characters.")
    reference: Reference | None = Field(
        None, description="For `failed` and `unknown`: where more is known, such as a trace."
    )
    retry: bool | None = Field(None, description="For `failed` (needed): whether repeating is safe.")
    retry_after_seconds: Seconds | None = Field(None, description="For `failed` with `retry`: instead of the backoff.")
    reason: ReleaseReason | None = Field(None, description="For `released` (needed).")
    delay_seconds: Seconds | None = Field(None, description="For `released`: not before so many seconds from now.")

    @model_validator(mode="after")
    def _fits_its_outcome(self) -> Self:
        wanted, allowed = _FIELDS[self.outcome]
        for name in _OPTIONAL:
            given = getattr(self, name) is not None
            if given and name not in allowed:
                raise wrong(f"`{name}` does not go with this outcome")
            if not given and name in wanted:
                raise wrong(f"`{name}` is needed with this outcome")
        return self


_OPTIONAL = ("result", "category", "message", "reference", "retry", "retry_after_seconds", "reason", "delay_seconds")
_FIELDS: dict[Outcome, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Outcome.SUCCEEDED: ((), ("result",)),
    Outcome.FAILED: (("category", "retry"), ("category", "message", "reference", "retry", "retry_after_seconds")),
    Outcome.UNKNOWN: (("category",), ("category", "message", "reference")),
    Outcome.RELEASED: (("reason",), ("reason", "delay_seconds")),
}


class SettleBatch(Body):
    """Settlements that are committed together; each stands for itself."""

    items: Annotated[list[SettleItem], Field(min_length=1, max_length=MOST_ITEMS)]


class ClaimJobs(Body):
    """A request for work."""

    queues: Annotated[list[Name], Field(min_length=1, max_length=32)] = Field(
        description="1 to 32 queues in order of preference.", examples=[["critical", "default"]]
    )
    handlers: Annotated[list[Handler], Field(max_length=256)] | None = Field(
        None, description="What this worker can handle; it is given nothing else. Left out or empty: anything."
    )
    worker: Label = Field(description="A label for people; it gives no authority.", examples=["mailer-7"])
    limit: int = Field(1, ge=1, le=100, description="At most so many jobs.")
    lease_seconds: float = Field(60, ge=5, le=3600, description="How long the reservations hold without a heartbeat.")
    wait_seconds: float = Field(
        0, ge=0, le=30, description="Wait so long for work; the answer comes as soon as there is some."
    )
    claim_id: ClaimId | None = Field(
        None,
        description="Unguessable and fresh for each claim: the same claim sent again gives the same grants while they are held.",
    )
    settlements: Annotated[list[SettleItem], Field(max_length=MOST_ITEMS)] | None = Field(
        None, description="Results of earlier work; committed before the wait begins, whatever the claim brings."
    )


class Reservation(Read):
    """What holds a thing. Keep the token secret; hand the fence to what you write to."""

    token: str = Field(description="Opaque; needed for heartbeats and settlements.")
    fence: int = Field(description="Grows with every grant of the same thing.")
    expires_at: str = Field(description="RFC 3339; the lease ends then unless a heartbeat comes.")


class ClaimedJob(Read):
    """A job in your hands."""

    id: str
    queue: str
    type: str
    schema_version: int
    payload: Any = Field(description="The JSON value as it was enqueued, byte for byte.")
    priority: int
    attempt: int = Field(description="From 1; counted when it is claimed.")
    max_attempts: int
    timeout_seconds: float
    correlation_id: str | None
    parent_operation_id: str | None
    traceparent: str | None = Field(description="W3C trace context of the call that enqueued it.")
    reservation: Reservation


class SettleResult(Read):
    """One settlement: status 200 with the job's state, else `problem`."""

    status: int
    id: str
    state: str | None = Field(description="The job's state after this settlement.")
    attempt: int | None
    available_at: str | None = Field(description="When it runs again, if it does.")
    replayed: bool
    problem: dict[str, Any] | None = Field(description="A problem as in an error answer.")


class SettleResults(Read):
    """One result for each item, in the order sent."""

    results: list[SettleResult]


class ClaimedJobs(Read):
    """Work, or none. `settled` has one result for each of the settlements sent along."""

    jobs: list[ClaimedJob]
    replayed: bool = Field(description="True if this `claim_id` was granted these jobs before.")
    settled: list[SettleResult]


class HeartbeatJob(Body):
    """A sign of life."""

    token: Token
    lease_seconds: float | None = Field(None, ge=5, le=3600, description="From now on; 60 if left out.")
    progress: OpaqueJson | None = Field(
        None, description="Any small JSON value (at most 4 KiB), shown to whoever reads the job."
    )


class HeartbeatItem(HeartbeatJob):
    """A sign of life of one job of several."""

    id: IdText


class HeartbeatBatch(Body):
    """Signs of life of several jobs."""

    items: Annotated[list[HeartbeatItem], Field(min_length=1, max_length=MOST_ITEMS)]


class Heartbeat(Read):
    """Until when the reservation holds, and whether to go on."""

    expires_at: str
    cancel_requested: bool = Field(description="Somebody asked to cancel: stop soon, then release or fail the job.")
    cancel_reason: str | None
    release_requested: bool = Field(description="The service asks for the job back: release it when you can.")


class HeartbeatResult(Read):
    """One heartbeat: status 200, else `problem`."""

    status: int
    id: str
    expires_at: str | None
    cancel_requested: bool
    cancel_reason: str | None
    release_requested: bool
    problem: dict[str, Any] | None = Field(description="A problem as in an error answer.")


class HeartbeatResults(Read):
    """One result for each item, in the order sent."""

    results: list[HeartbeatResult]


class CompleteJob(Body):
    """The work is done."""

    token: Token
    result: OpaqueJson | None = Field(None, description="Any JSON value, kept byte for byte.")


class FailJob(Body):
    """The work failed, and why."""

    token: Token
    category: Name = Field(description="A stable class of the failure.", examples=["provider_timeout"])
    message: Note | None = Field(None, description="For people, up to 2000 characters.")
    reference: Reference | None = Field(None, description="Where more is known, such as a trace or a log line.")
    retry: bool = Field(description="True only if repeating the work is safe.")
    retry_after_seconds: Seconds | None = Field(None, description="Instead of the backoff.")


class UnknownJob(Body):
    """The effect may or may not have happened."""

    token: Token
    category: Name = Field(description="A stable class of the doubt.", examples=["answer_lost"])
    message: Note | None = None
    reference: Reference | None = Field(None, description="What the other side knows the effect by.")


class ReleaseJob(Body):
    """The job is given back unworked."""

    token: Token
    reason: ReleaseReason
    delay_seconds: Seconds | None = Field(None, description="Not before so many seconds from now.")


class SettledJob(Read):
    """The job after its settlement."""

    id: str
    state: str
    attempt: int
    available_at: str | None = Field(description="When it runs again, if it does.")
    replayed: bool = Field(description="True if the same settlement was there already.")
