"""What workers send about the jobs that they hold: settlements and heartbeats, and what they are answered."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from app.jsontext import Body, IdText, Name, Note, OpaqueJson, Read, Seconds, Token, wrong
from app.primitives.jobs.model import Outcome, ReleaseReason
from app.primitives.jobs.schemas.parts import MOST_ITEMS, Reference


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
        for name in self.model_fields_set - _ALWAYS:
            if name not in allowed and getattr(self, name) is not None:
                raise wrong(f"`{name}` does not go with this outcome")
        for name in wanted:
            if getattr(self, name) is None:
                raise wrong(f"`{name}` is needed with this outcome")
        return self


_ALWAYS = frozenset({"id", "token", "outcome"})
_FIELDS: dict[Outcome, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Outcome.SUCCEEDED: ((), ("result",)),
    Outcome.FAILED: (("category", "retry"), ("category", "message", "reference", "retry", "retry_after_seconds")),
    Outcome.UNKNOWN: (("category",), ("category", "message", "reference")),
    Outcome.RELEASED: (("reason",), ("reason", "delay_seconds")),
}


class SettleBatch(Body):
    """Settlements that are committed together; each stands for itself."""

    items: Annotated[list[SettleItem], Field(min_length=1, max_length=MOST_ITEMS)]


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


class HeartbeatJob(Body):
    """A sign of life."""

    token: Token
    lease_seconds: float | None = Field(
        None,
        ge=5,
        le=3600,
        description="From now on; as long as the claim asked for if left out. A reservation is never shortened.",
    )
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
