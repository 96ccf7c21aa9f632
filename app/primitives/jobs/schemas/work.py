"""What producers and workers send, and what they are answered. Sizes, units and defaults stand in the descriptions."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from app.jsontext import (
    Body,
    ClaimId,
    Key,
    Label,
    Moment,
    Name,
    OpaqueJson,
    Read,
    Seconds,
    wrong,
)
from app.jsontext.types import TEN_YEARS_SECONDS
from app.primitives.jobs.model import OnConflict, Until
from app.primitives.jobs.schemas.held import SettleItem, SettleResult
from app.primitives.jobs.schemas.parts import MOST_ITEMS, Reference, Version
from app.primitives.jobs.schemas.views import JobRead


class UniqueKey(Body):
    """At most one job of this type with this key."""

    key: Key = Field(
        description="Counts within the job's type, whatever its queue and version.", examples=["invoice-4711"]
    )
    until: Until = Field(
        Until.FINISHED,
        description="`started`: the key is free once the job has been claimed. `finished`: once it has ended, also by a verdict; "
        "an `unknown` job still holds it.",
    )
    on_conflict: OnConflict = Field(
        OnConflict.KEEP,
        description="If another job holds the key. `keep`: it is the answer (`deduplicated`). `replace`: it gets everything of "
        "this one, if it was never started, and is the answer; else 409. `reject`: 409 `unique_conflict`.",
    )


class DebounceKey(Body):
    """One run for many enqueues: it begins `delay_seconds` after the newest, with the newest's content."""

    key: Key = Field(
        description="Counts within the job's type, whatever its queue and version.", examples=["reindex-17"]
    )
    delay_seconds: Annotated[float, Field(gt=0, le=TEN_YEARS_SECONDS)] = Field(
        description="Each further enqueue before the start puts it off to so many seconds from then.", examples=[5]
    )
    max_wait_seconds: Annotated[float, Field(gt=0, le=TEN_YEARS_SECONDS)] | None = Field(
        None,
        description="But to no later than so many seconds from the first one; at least `delay_seconds`. Left out: ten times "
        "`delay_seconds`.",
        examples=[60],
    )

    @model_validator(mode="after")
    def _waits_long_enough(self) -> Self:
        if self.max_wait_seconds is not None and self.max_wait_seconds < self.delay_seconds:
            raise wrong("`max_wait_seconds` must not be below `delay_seconds`")
        return self


class ConcurrencyKey(Body):
    """At most `limit` jobs with this key are available or running at once; the others are `blocked`, in order."""

    key: Key = Field(description="Counts for the whole installation, whatever the type.", examples=["printer-3"])
    limit: int = Field(ge=1, le=10_000, description="The newest enqueue's limit is the key's.", examples=[1])


class EnqueueJob(Body):
    """One job. What is left out comes from the contract of its type, then from the settings."""

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
    unique: UniqueKey | None = Field(None, description="Not together with `debounce`.", examples=[None])
    debounce: DebounceKey | None = Field(
        None, description="Not together with `unique`, `available_at` or `delay_seconds`.", examples=[None]
    )
    concurrency: ConcurrencyKey | None = Field(None, examples=[None])
    correlation_id: Reference | None = Field(None, description="Yours, to find related work by.")
    parent_operation_id: Reference | None = Field(None, description="Yours, the operation that this job is part of.")

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if self.available_at is not None and self.delay_seconds is not None:
            raise wrong("`available_at` and `delay_seconds` exclude each other")
        if self.debounce is not None and (self.available_at is not None or self.delay_seconds is not None):
            raise wrong(
                "`debounce` says when it is due: neither `available_at` nor `delay_seconds` may stand beside it"
            )
        if self.debounce is not None and self.unique is not None:
            raise wrong("`unique` and `debounce` exclude each other")
        return self


class EnqueueBatch(Body):
    """Jobs that are enqueued in one commit."""

    jobs: Annotated[list[EnqueueJob], Field(min_length=1, max_length=MOST_ITEMS)] = Field(description="1 to 1000 jobs.")


class EnqueuedJob(JobRead):
    """The job, and whether it was there before."""

    replayed: bool = Field(description="True if the idempotency key made this job before.")
    deduplicated: bool = Field(
        description="True if a job that was there before holds the unique or debounce key, and is this one."
    )


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


class ClaimJobs(Body):
    """A request for work."""

    queues: Annotated[list[Name], Field(min_length=1, max_length=32)] = Field(
        description="1 to 32 queues in order of preference. A queue with work that was passed over 16 times in a row, because "
        "queues before it never ran dry, gives the next claim its first job.",
        examples=[["critical", "default"]],
    )
    handlers: Annotated[list[Handler], Field(max_length=256)] | None = Field(
        None, description="What this worker can handle; it is given nothing else. Left out or empty: anything."
    )
    worker: Label = Field(description="A label for people; it gives no authority.", examples=["mailer-7"])
    limit: int = Field(1, ge=1, le=100, description="At most so many jobs.")
    lease_seconds: float | None = Field(
        None,
        ge=5,
        le=3600,
        description="How long the reservations hold without a heartbeat. Left out: as each job's contract says, else as the "
        "service is set up (60 if not otherwise).",
    )
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
    max_attempts: int | None = Field(description="Null: no ceiling.")
    timeout_seconds: float
    correlation_id: str | None
    parent_operation_id: str | None
    traceparent: str | None = Field(description="W3C trace context of the call that enqueued it.")
    reservation: Reservation


class ClaimedJobs(Read):
    """Work, or none. `settled` has one result for each of the settlements sent along."""

    jobs: list[ClaimedJob]
    replayed: bool = Field(description="True if this `claim_id` was granted these jobs before.")
    settled: list[SettleResult]
