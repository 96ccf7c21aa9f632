"""What operators send about jobs, and what they are answered besides the job itself."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from app.http.paging import PageParams
from app.jsontext import Body, Label, Moment, Name, OpaqueJson, Params, Read, Reason, wrong
from app.primitives.jobs.model import Verdict
from app.primitives.jobs.ops.bulk import Action
from app.primitives.jobs.schemas.views import JobState

# no control characters: PostgreSQL keeps no NUL in a text
Reference = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
_REASON = "Why; kept in the job's events and in the audit."
_AT = "2026-01-31T08:30:00.000000Z"


class JobParams(Params):
    """How much of a job is wanted."""

    include: Annotated[str, StringConstraints(pattern=r"^(payload|result)(,(payload|result))*$")] | None = Field(
        None,
        description="`payload`, `result` or `payload,result`; needs the role operator.",
        examples=["payload,result"],
    )


class ListJobsParams(PageParams):
    """Which jobs to list. Filters that stand together must all fit."""

    queue: Name | None = Field(None, description="Only of this queue.", examples=["billing"])
    type: Name | None = Field(None, description="Only of this type.", examples=["invoice.send"])
    state: JobState | None = Field(None, description="Only in this state.")
    correlation_id: Reference | None = Field(None, description="Only with exactly this one.", examples=["order-4711"])
    parent_operation_id: Reference | None = Field(None, description="Only with exactly this one.")
    worker: Label | None = Field(None, description="Only those whose newest attempt was this worker's.")
    category: Name | None = Field(None, description="Only those whose last real failure was of this category.")
    created_after: Moment | None = Field(None, description="Enqueued at this moment or later.", examples=[_AT])
    created_before: Moment | None = Field(None, description="Enqueued before this moment.", examples=[_AT])


class JobFilter(Body):
    """Which jobs an action is for: the same filters as the list has. At least one is needed; all given must fit."""

    queue: Name | None = Field(None, description="Only of this queue.", examples=["billing"])
    type: Name | None = Field(None, description="Only of this type.", examples=["invoice.send"])
    state: JobState | None = Field(None, description="Only in this state.", examples=["dead"])
    correlation_id: Reference | None = Field(None, description="Only with exactly this one.", examples=[None])
    parent_operation_id: Reference | None = Field(None, description="Only with exactly this one.", examples=[None])
    worker: Label | None = Field(
        None, description="Only those whose newest attempt was this worker's.", examples=[None]
    )
    category: Name | None = Field(
        None, description="Only those whose last real failure was of this category.", examples=[None]
    )
    created_after: Moment | None = Field(None, description="Enqueued at this moment or later.", examples=[None])
    created_before: Moment | None = Field(None, description="Enqueued before this moment.", examples=[None])

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise wrong("must have at least one filter, so that nobody changes every job by accident")
        return self


class CancelJob(Body):
    """Why it is cancelled."""

    reason: Reason = Field(description=_REASON, examples=["the order was withdrawn"])


class RetryJob(Body):
    """Why it is tried again."""

    reason: Reason = Field(description=_REASON, examples=["the provider is back"])


class ReconcileJob(Body):
    """The verdict on an unknown job, and what it rests on."""

    verdict: Verdict = Field(
        description="`succeeded`: the effect happened. `retry`: it did not, and is to be tried. `dead`: it is given up."
    )
    evidence: OpaqueJson = Field(
        description="Any JSON value that says how you know; kept byte for byte in the job's events.",
        examples=[{"provider_status": "captured", "checked_by": "ada"}],
    )
    reference: Reference | None = Field(
        None, description="What the other side knows the effect by.", examples=["ch_81f2"]
    )
    reason: Reason | None = Field(None, description="In words, for people.", examples=[None])


class ChangeJobs(Body):
    """One action on all jobs that a filter fits."""

    action: Action = Field(
        description="`cancel`: waiting jobs are cancelled, running ones asked to stop. `retry`: dead and "
        "cancelled jobs become available with a fresh budget. `purge`: ended jobs are forgotten at once. Unknown jobs are "
        "never touched.",
        examples=["retry"],
    )
    filter: JobFilter
    dry_run: bool = Field(False, description="Count only.")
    limit: Annotated[int, Field(ge=1, le=10_000)] = Field(1000, description="Touch at most so many jobs; 1 to 10000.")
    reason: Reason = Field(
        description="Why; kept in the jobs' events and in the audit.", examples=["the provider is back"]
    )


class JobsChangedRead(Read):
    """What a bulk action has done."""

    action: Action
    dry_run: bool
    matched: int = Field(
        description="Jobs that the filter fits and that the action can change, at most `limit`. With `dry_run`: what the "
        "same call without it would change now.",
        examples=[12],
    )
    changed: int = Field(description="Jobs that were changed; 0 with `dry_run`.", examples=[12])
    more: bool = Field(description="True if `limit` ended it: there may be others; send it again.", examples=[False])


class SlotHolderRead(Read):
    """A job that holds a slot of a concurrency key."""

    id: str
    state: JobState
    expires_at: Moment | None = Field(description="When its lease ends; null while nobody has claimed it.")


class ReasonEvidence(Read):
    """What a reason rests on; null where it does not belong to the reason."""

    at: Moment | None = Field(description="When it is due, ended, or was asked to stop.", examples=[_AT])
    since: Moment | None = Field(description="Since when it is so.", examples=[None])
    expires_at: Moment | None = Field(description="When the running attempt's lease ends.", examples=[None])
    attempt: int | None = Field(examples=[1])
    worker: str | None = Field(description="Whose attempt it is or was.", examples=[None])
    why: str | None = Field(
        description="For `due_later`: `delayed`, `backoff`, `lease_lost` or `released`.", examples=["backoff"]
    )
    category: str | None = Field(description="Category of the last failure.", examples=["timeout"])
    message: str | None = Field(description="Message of the last failure.", examples=["no answer in 30 s"])
    reason: str | None = Field(description="Why somebody paused the queue or asked to cancel.", examples=[None])
    ahead: int | None = Field(description="How many come first, counted up to 1000.", examples=[None])
    workers: list[str] = Field(
        description="Some workers that claim from its queue without naming its type and version."
    )
    key: str | None = Field(description="The concurrency key whose slots are all held.", examples=[None])
    limit: int | None = Field(description="How many slots it has.", examples=[None])
    holders: list[SlotHolderRead] = Field(description="Jobs that hold a slot, as far as you may see them; at most 10.")


class ReasonRead(Read):
    """One reason why a job does not run now."""

    code: str = Field(
        description="`ended`, `verdict_required`, `running`, `cancel_requested`, `due_later`, `queue_paused`, `key_held`, "
        "`no_worker_seen`, `no_handler`, `behind_others` or `ready`. New codes may come.",
        examples=["due_later"],
    )
    detail: str = Field(description="One sentence for people.", examples=["It is not due before 2026-01-31T08:30:00Z."])
    evidence: ReasonEvidence


class ExplanationRead(Read):
    """Why a job is not running now."""

    id: str
    queue: str
    type: str
    schema_version: int
    state: JobState
    reasons: list[ReasonRead] = Field(description="Never empty; what holds it most firmly comes first.")
