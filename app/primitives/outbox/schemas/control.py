"""What operators send about messages, and what they are answered besides the message itself."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from app.http.paging import PageParams
from app.jsontext import Body, Key, Name, OpaqueJson, Params, Read, Reason, Seconds
from app.primitives.outbox.model.states import Verdict
from app.primitives.outbox.schemas.parts import Reference
from app.primitives.outbox.schemas.views import MessageState

Most = Annotated[int, Field(ge=1, le=10_000)]


class MessageParams(Params):
    """How much of a message is wanted."""

    include: Literal["payload"] | None = Field(None, description="`payload`; needs the role operator.")


class ListMessagesParams(PageParams):
    """Which messages to list. Filters that stand together must all fit."""

    destination: Name | None = Field(None, description="Only for this destination.", examples=["marketplace"])
    type: Name | None = Field(None, description="Only of this type.", examples=["order.submitted"])
    state: MessageState | None = Field(None, description="Only in this state.")
    message_key: Key | None = Field(None, description="Only the one with this key.", examples=["order-123-submitted"])


class ReconcileMessage(Body):
    """The verdict on an unknown message, and what it rests on."""

    verdict: Verdict = Field(
        description="`sent`: it was accepted. `retry`: it was not, and is to be sent. `dead`: it is given up."
    )
    evidence: OpaqueJson = Field(
        description="Any JSON value that says how you know; kept byte for byte in the message's events.",
        examples=[{"provider_status": "captured", "checked_by": "ada"}],
    )
    provider_operation_id: Reference | None = Field(
        None, description="What the destination knows the effect by.", examples=["ch_81f2"]
    )
    reason: Reason | None = Field(None, description="In words, for people.", examples=[None])


class RequeueMessages(Body):
    """Which dead messages are to be sent after all."""

    destination: Name | None = Field(None, description="Only for this destination.", examples=["marketplace"])
    type: Name | None = Field(None, description="Only of this type.", examples=[None])
    limit: Most = Field(1000, description="At most so many; 1 to 10000.")


class ReleaseStaleMessages(Body):
    """Which messages are to be taken from their holders."""

    claimed_before_seconds: Seconds = Field(
        description="Claimed at least so many seconds ago, whatever their leases say. Longer than the slowest sending.",
        examples=[900],
    )
    limit: Most = Field(1000, description="At most so many; 1 to 10000.")


class PurgeState(StrEnum):
    """The states in which a message may be forgotten."""

    SENT = "sent"
    DEAD = "dead"
    ABORTED = "aborted"


class PurgeMessages(Body):
    """Which ended messages are to be forgotten."""

    state: PurgeState
    older_than_seconds: Seconds = Field(description="Ended at least so many seconds ago.", examples=[604800])
    limit: Most = Field(1000, description="At most so many; 1 to 10000.")


class MessagesChangedRead(Read):
    """What the action has done. As many as `limit`: there may be more."""

    changed: int = Field(description="Messages that it changed.")
    unknown: int = Field(description="Those of them that are `unknown` now, because their destination bears no repeat.")


class CountsRead(Read):
    """Messages by state."""

    prepared: int
    pending: int
    blocked: int
    sending: int
    sent: int
    unknown: int
    dead: int
    aborted: int


class DestinationStatsRead(Read):
    """Figures of one destination."""

    destination: str
    counts: CountsRead
    oldest_pending_age_seconds: float | None = Field(
        description="For how long the oldest message that can be claimed has been claimable; null if there is none."
    )
    needs_operator: int = Field(
        description="Unknown and prepared messages of which nothing could be found out: an operator must decide."
    )


class OutboxStatsRead(Read):
    """Figures of the outbox."""

    destinations: list[DestinationStatsRead]
    totals: CountsRead
    set_aside: int = Field(
        description="Rows that producers wrote by SQL and that are no messages; `reason` in the table says why. At most 10000."
    )
