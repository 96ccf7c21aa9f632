"""What producers and holders send, and what they are answered. Sizes, units and defaults stand in the descriptions."""

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
from app.outgoing import urls
from app.primitives.outbox.model.states import Outcome, ReleaseReason
from app.primitives.outbox.schemas.parts import MOST_ITEMS, Reference, Url, Version
from app.primitives.outbox.schemas.views import MessageRead

Lease = Annotated[float, Field(ge=5, le=3600)]


class PrepareMessage(Body):
    """The message is held back until it is confirmed or aborted."""

    decide_within_seconds: float = Field(
        gt=0,
        le=2_592_000,
        description="How long the producer has to decide; then it is asked. Longer than its slowest transaction.",
        examples=[60],
    )
    check_url: Url | None = Field(
        None,
        description="Asked by GET when the time has passed; answers `committed`, `rolled_back` or `undecided`, as plain text or "
        'as `{"decision": …}`. Left out: an operator decides then.',
        examples=["https://shop.example.org/outbox-checks/order-123"],
    )

    @model_validator(mode="after")
    def _can_be_called(self) -> Self:
        if self.check_url is not None and (fault := urls.problem_with(self.check_url)) is not None:
            raise wrong(f"`check_url` {fault}")
        return self


class RecordMessage(Body):
    """An intent to send something to a destination."""

    message_key: Key = Field(
        description="What the intent is known by, for the whole installation: the same key with the same content is the same "
        "message, also after it was sent.",
        examples=["order-123-submitted"],
    )
    type: Name = Field(description="What kind of message it is.", examples=["order.submitted"])
    schema_version: Version = Field(1, description="Version of the payload's shape.")
    destination: Name = Field(description="Where it goes; it must have been set.", examples=["marketplace"])
    payload: OpaqueJson = Field(
        description="Any JSON value, stored and handed out byte for byte.", examples=[{"order": "order-123"}]
    )
    occurred_at: Moment | None = Field(None, description="When it happened. Left out: now.")
    available_at: Moment | None = Field(None, description="Not to be sent before this moment.")
    ordering_key: Key | None = Field(
        None,
        description="Messages of one destination with the same key are sent one after the other, in the order of their "
        "recording.",
        examples=["order-123"],
    )
    correlation_id: Reference | None = Field(None, description="Yours, to find related work by.")
    target_reference: Reference | None = Field(None, description="Yours, what the message is about.")
    max_attempts: int | None = Field(
        None, ge=1, le=1000, description="How often it is tried at most. Left out: as its destination says at the time."
    )
    prepare: PrepareMessage | None = Field(
        None,
        description="For producers that cannot write into this database: record first, commit your own transaction, then "
        "confirm. Left out: the message is to be sent.",
        examples=[None],
    )


class RecordBatch(Body):
    """Messages that are recorded in one commit."""

    messages: Annotated[list[RecordMessage], Field(min_length=1, max_length=MOST_ITEMS)] = Field(
        description="1 to 1000 messages."
    )


class RecordedMessage(MessageRead):
    """The message, and whether it was there before."""

    replayed: bool = Field(description="True if the message key made this message before.")


class RecordResult(Read):
    """One message of a batch: `message` if status is 200 or 201, else `problem`."""

    status: int
    message: RecordedMessage | None
    problem: dict[str, Any] | None = Field(description="A problem as in an error answer.")


class RecordResults(Read):
    """One result for each message, in the order sent."""

    results: list[RecordResult]


class SettleItem(Body):
    """What became of one message. Which of the other fields may stand depends on `outcome`."""

    id: IdText
    token: Token
    outcome: Outcome
    provider_operation_id: Reference | None = Field(
        None, description="For `sent` and `unknown`: what the destination knows the effect by."
    )
    category: Name | None = Field(
        None, description="For `retry`, `rejected` and `unknown` (needed): a stable class of what happened."
    )
    message: Note | None = Field(
        None, description="For `retry`, `rejected` and `unknown`: for people, up to 2000 characters."
    )
    retry_after_seconds: Seconds | None = Field(None, description="For `retry`: instead of the backoff.")
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
    Outcome.SENT: ((), ("provider_operation_id",)),
    Outcome.RETRY: (("category",), ("category", "message", "retry_after_seconds")),
    Outcome.REJECTED: (("category",), ("category", "message")),
    Outcome.UNKNOWN: (("category",), ("category", "message", "provider_operation_id")),
    Outcome.RELEASED: (("reason",), ("reason", "delay_seconds")),
}


class SettleBatch(Body):
    """Settlements that are committed together; each stands for itself."""

    items: Annotated[list[SettleItem], Field(min_length=1, max_length=MOST_ITEMS)]


class SettledMessage(Read):
    """The message after its settlement."""

    id: str
    state: str
    attempt: int
    available_at: str | None = Field(description="When it can be claimed again, if it can.")
    replayed: bool = Field(description="True if the same settlement was there already.")


class SettleResult(Read):
    """One settlement: status 200 with the message's state, else `problem`."""

    status: int
    id: str
    state: str | None = Field(description="The message's state after this settlement.")
    attempt: int | None
    available_at: str | None = Field(description="When it can be claimed again, if it can.")
    replayed: bool
    problem: dict[str, Any] | None = Field(description="A problem as in an error answer.")


class SettleResults(Read):
    """One result for each item, in the order sent."""

    results: list[SettleResult]


class ClaimMessages(Body):
    """A request for messages."""

    destinations: Annotated[list[Name], Field(min_length=1, max_length=32)] = Field(
        description="1 to 32 destinations in order of preference.", examples=[["marketplace"]]
    )
    types: Annotated[list[Name], Field(max_length=256)] | None = Field(
        None, description="Only messages of these types. Left out or empty: of any.", examples=[None]
    )
    worker: Label = Field(description="A label for people; it gives no authority.", examples=["sender-7"])
    limit: int = Field(1, ge=1, le=100, description="At most so many messages.")
    lease_seconds: Lease | None = Field(
        None, description="How long the reservations hold without a heartbeat. Left out: as the service is set up (60)."
    )
    wait_seconds: float = Field(
        0, ge=0, le=30, description="Wait so long for messages; the answer comes as soon as there is one."
    )
    claim_id: ClaimId | None = Field(
        None,
        description="Unguessable and fresh for each claim: the same claim sent again gives the same grants while they are held.",
    )
    settlements: Annotated[list[SettleItem], Field(max_length=MOST_ITEMS)] | None = Field(
        None, description="Results of earlier work; committed before the wait begins, whatever the claim brings."
    )


class ReservationRead(Read):
    """What proves that you hold the message."""

    token: str = Field(description="Opaque; settle with it. Keep it secret.")
    fence: int = Field(description="Grows with every grant; hand it to what you write to.")
    expires_at: str


class ClaimedMessage(Read):
    """One message, for you to send."""

    id: str
    message_key: str = Field(description="Hand it to the destination as its idempotency key, if it takes one.")
    destination: str
    type: str
    schema_version: int
    payload: Any = Field(description="Byte for byte as recorded.")
    occurred_at: str
    ordering_key: str | None
    correlation_id: str | None
    target_reference: str | None
    traceparent: str | None
    attempt: int = Field(description="1 for the first attempt.")
    max_attempts: int
    reservation: ReservationRead


class ClaimedMessages(Read):
    """What the claim was given, and what became of its settlements."""

    messages: list[ClaimedMessage]
    replayed: bool = Field(description="True if an earlier claim with this id was given these, and still holds them.")
    settled: list[SettleResult] = Field(description="One result for each of `settlements`, in the order sent.")


class SentMessage(Body):
    """The destination has accepted it."""

    token: Token
    provider_operation_id: Reference | None = Field(
        None, description="What the destination knows the effect by.", examples=["ch_81f2"]
    )


class RetryMessage(Body):
    """It was certainly not accepted, and sending it again is safe."""

    token: Token
    category: Name = Field(description="A stable class of what happened.", examples=["connection_refused"])
    message: Note | None = Field(None, examples=[None])
    retry_after_seconds: Seconds | None = Field(None, description="Instead of the backoff.", examples=[None])


class RejectMessage(Body):
    """The destination has refused it for good."""

    token: Token
    category: Name = Field(description="A stable class of the refusal.", examples=["card_declined"])
    message: Note | None = Field(None, examples=[None])


class UnknownMessage(Body):
    """It may or may not have been accepted."""

    token: Token
    category: Name = Field(description="A stable class of the doubt.", examples=["answer_lost"])
    message: Note | None = Field(None, examples=[None])
    provider_operation_id: Reference | None = Field(
        None, description="What the destination may know the effect by.", examples=[None]
    )


class ReleaseMessage(Body):
    """It is given back unworked."""

    token: Token
    reason: ReleaseReason
    delay_seconds: Seconds | None = Field(None, description="Not before so many seconds from now.")


class HeartbeatMessage(Body):
    """A sign of life."""

    token: Token
    lease_seconds: Lease | None = Field(None, description="From now. Left out: as the claim asked for.")


class MessageHeartbeat(Read):
    """Until when the reservation holds now."""

    expires_at: str
