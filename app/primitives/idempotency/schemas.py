"""Request and response models of idempotency."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, model_validator

from app.http.paging import PageParams, PageRead
from app.jsontext import Body, ClaimId, Key, Name, Note, OpaqueJson, Read, Token, wrong
from app.primitives.idempotency.model import OnOwnerLost, Outcome, Verdict

AT = "2026-01-31T08:30:00.000000Z"
TOKEN = "c29tZSBvcGFxdWUgdG9rZW4…"  # noqa: S105 - an example
Lease = Annotated[float, Field(ge=1, le=86_400)]
RESULT: dict[str, Any] = {"status": 201, "body": {"order": "o-17"}}


class OneKey(Body):
    scope: Key = Field(description="What the key belongs to: an endpoint, an operation.", examples=["POST /orders"])
    key: Key = Field(
        description="The key itself, as your caller sent it. Only its digest is stored.", examples=["k-4711"]
    )


class CheckKey(OneKey):
    fingerprint: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        None, description="What tells one request from another, in your own words. Or send `request`.", examples=[None]
    )
    request: OpaqueJson | None = Field(
        None,
        description="The request itself, any JSON value. It is digested in its canonical form (RFC 8785) and not stored: the "
        "order of members, white space and the spelling of numbers do not count.",
        examples=[{"customer": "c-9", "amount": 1250}],
    )
    lease_seconds: Lease = Field(
        60, description="How long the work is yours unless you send heartbeats.", examples=[60]
    )
    retention_seconds: float = Field(
        86_400, ge=1, le=315_360_000, description="How long the outcome is kept.", examples=[86400]
    )
    on_owner_lost: OnOwnerLost = Field(
        OnOwnerLost.RECONCILE,
        description="What becomes of the key if you are lost before you say what became of the work. `reconcile`: nobody does it "
        "again until somebody has found out. `reopen`: the next check does it again; only for work that bears that. `fail`: it "
        "has failed.",
    )
    wait_seconds: float = Field(
        0, ge=0, le=30, description="While another is at work, wait so long for its outcome.", examples=[0]
    )
    claim_id: ClaimId | None = Field(
        None, description="Of your own choice, unguessable. Sent again, it gives the same reservation while that holds."
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> CheckKey:
        if (self.fingerprint is None) == (self.request is None):
            raise wrong("send either `fingerprint` or `request`")
        return self


class HeldKey(OneKey):
    token: Token


class CompleteKey(HeldKey):
    result: OpaqueJson = Field(
        description="What everybody gets who sends the same request: any JSON value, stored byte for byte.",
        examples=[RESULT],
    )


class FailKey(HeldKey):
    category: Name = Field(description="A stable class of the failure.", examples=["card_declined"])
    message: Note | None = Field(None, description="For people, up to 2000 characters.")
    retry: bool = Field(
        description="True: nothing has happened, and the next check may do the work. False: it has failed for good."
    )


class UnknownKey(HeldKey):
    category: Name = Field("said_unknown", description="A stable class of the doubt.", examples=["answer_lost"])
    message: Note | None = Field(None, description="For people, up to 2000 characters.")


class HeartbeatKey(HeldKey):
    lease_seconds: Lease | None = Field(None, description="From now on; null is what the check asked for.")


class ReconcileKey(OneKey):
    verdict: Verdict = Field(
        description="`completed`: it was done, with this `result`. `failed`: it was not, and will not be. `reopen`: it was not, "
        "and the next check may do it."
    )
    result: OpaqueJson | None = Field(None, description="Of a completed one; null if there is none.", examples=[RESULT])
    evidence: OpaqueJson = Field(
        description="Any JSON value that says how you know; kept byte for byte in the audit.",
        examples=[{"provider_status": "captured", "checked_by": "ada"}],
    )

    @model_validator(mode="after")
    def _result_fits(self) -> ReconcileKey:
        if self.result is not None and self.verdict is not Verdict.COMPLETED:
            raise wrong("`result` is only for the verdict `completed`")
        return self


class KeyReservation(Read):
    token: str = Field(examples=[TOKEN])
    fence: int = Field(description="Grows with every grant of this key, for ever.", examples=[1])
    expires_at: str = Field(examples=[AT])


class KeyFailure(Read):
    category: str = Field(examples=["card_declined"])
    message: str | None


class CheckedKey(Read):
    outcome: Outcome = Field(
        description="`acquired`: do the work. `in_progress`: another does it. `replay`: it is done. `reconcile`: whether it was "
        "done is not known. `failed`: it has failed for good."
    )
    reservation: KeyReservation | None = Field(description="If acquired.")
    result: Any = Field(description="If done: what `complete` was sent, byte for byte; else null.", examples=[RESULT])
    failure: KeyFailure | None = Field(description="If failed.")
    reason: str | None = Field(
        description="If to be reconciled: `owner_lost`, or the category that the owner gave.", examples=["owner_lost"]
    )
    expires_at: str | None = Field(description="If another does it: when its lease ends.", examples=[AT])
    attempt: int = Field(description="1 for the first who does the work; more if it was reopened.", examples=[1])
    replayed: bool = Field(description="This very claim got the reservation before.")


class SettledKeyState(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    OPEN = "open"


class SettledKey(Read):
    scope: str = Field(examples=["POST /orders"])
    key: str = Field(examples=["k-4711"])
    state: SettledKeyState = Field(description="`open`: the next check may do the work.")
    attempt: int = Field(examples=[1])
    fence: int = Field(examples=[1])
    replayed: bool = Field(description="It was said before, with the same content.")


class RenewedKey(Read):
    scope: str
    key: str
    fence: int = Field(examples=[1])
    expires_at: str = Field(examples=[AT])


class KeyStateName(StrEnum):
    RUNNING = "running"
    OPEN = "open"
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"


class ListKeysParams(PageParams):
    state: KeyStateName = Field(KeyStateName.UNKNOWN, description="Those that need a verdict, unless said.")
    scope: Key | None = Field(None, description="Only of this scope.")


class KeyView(Read):
    scope: str = Field(examples=["POST /orders"])
    key_digest: str = Field(
        description="SHA-256 in hex of: `idempotency`, a zero byte, the scope's length in two bytes, the scope, the key."
    )
    state: KeyStateName
    attempt: int = Field(examples=[1])
    fence: int = Field(examples=[1])
    on_owner_lost: OnOwnerLost
    created_at: str = Field(examples=[AT])
    ended_at: str | None = Field(description="When its work ended or its owner was lost.", examples=[AT])
    expires_at: str | None = Field(description="When its lease or its retention ends.", examples=[AT])
    category: str | None = Field(examples=["owner_lost"])


class KeyListRead(PageRead):
    items: list[KeyView]
