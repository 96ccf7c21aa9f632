"""What reconcilers send, and what they are answered."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from app.jsontext import Body, ClaimId, IdText, Label, Name, OpaqueJson, Read, Reason, Token
from app.primitives.outbox.schemas.parts import Reference
from app.primitives.outbox.schemas.views import MessageRead
from app.primitives.outbox.schemas.work import Lease, ReservationRead


class ClaimDoubts(Body):
    """A request for unknown messages, to find out what became of them."""

    destinations: Annotated[list[Name], Field(min_length=1, max_length=32)] = Field(
        description="1 to 32 destinations in order of preference.", examples=[["marketplace"]]
    )
    types: Annotated[list[Name], Field(max_length=256)] | None = Field(
        None, description="Only messages of these types. Left out or empty: of any.", examples=[None]
    )
    worker: Label = Field(description="A label for people; it gives no authority.", examples=["reconciler-1"])
    limit: int = Field(1, ge=1, le=100, description="At most so many messages.")
    lease_seconds: Lease | None = Field(
        None, description="How long you have to find out. Left out: as the service is set up (60)."
    )
    wait_seconds: float = Field(
        0, ge=0, le=30, description="Wait so long for messages; the answer comes as soon as there is one."
    )
    claim_id: ClaimId | None = Field(
        None,
        description="Unguessable and fresh for each claim: the same claim sent again gives the same grants while they are held.",
    )


class DoubtfulMessage(MessageRead):
    """An unknown message, for you to find out about."""

    payload: Any = Field(description="Byte for byte as recorded.")
    traceparent: str | None = Field(description="W3C trace context of the recording call.")
    unknown_since: str
    asked: int = Field(description="Which try to find out this is, from 1.")
    reconcile_budget: int = Field(description="How many tries there are, before an operator must decide.")
    reservation: ReservationRead


class ClaimedDoubts(Read):
    """What the claim was given."""

    messages: list[DoubtfulMessage]
    replayed: bool = Field(description="True if an earlier claim with this id was given these, and still holds them.")


class FindingWord(StrEnum):
    """What a reconciler found out."""

    SENT = "sent"
    RETRY = "retry"
    DEAD = "dead"
    UNDECIDED = "undecided"


class GiveVerdict(Body):
    """What you found out, and what it rests on."""

    token: Token
    verdict: FindingWord = Field(
        description="`sent`: it was accepted. `retry`: it was not, and is to be sent. `dead`: it is given up. `undecided`: it "
        "could not be found out; it is looked at again after a pause, while the budget lasts."
    )
    evidence: OpaqueJson = Field(
        description="Any JSON value that says how you know; kept byte for byte in the message's events.",
        examples=[{"provider_status": "captured"}],
    )
    provider_operation_id: Reference | None = Field(
        None, description="What the destination knows the effect by.", examples=["ch_81f2"]
    )
    reason: Reason | None = Field(None, description="In words, for people.", examples=[None])


class FoundMessage(Read):
    """The message after what you found out."""

    id: IdText
    state: str
    needs_operator: bool = Field(description="True if the budget is spent: an operator must decide.")
    next_at: str | None = Field(description="When it may be looked at again, if it is still unknown.")
    replayed: bool = Field(description="True if you had said the same before.")
