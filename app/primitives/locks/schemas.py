"""Request and response models of the locks."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from app.http.paging import PageParams, PageRead
from app.jsontext import Body, ClaimId, Key, Label, Read, Reason, Token

AT = "2026-01-31T08:30:00.000000Z"
TOKEN = "c29tZSBvcGFxdWUgdG9rZW4…"  # noqa: S105 - an example
Ttl = Annotated[float, Field(ge=1, le=86_400)]
Fence = Annotated[int, Field(ge=0, le=9_007_199_254_740_991)]


class LockName(Body):
    name: Key = Field(description="What is locked: 1 to 255 bytes of UTF-8.", examples=["billing.invoices"])


class AcquireLock(LockName):
    owner: Label = Field(
        description="Who asks, for people: a host, a process. It gives no authority.", examples=["web-3:4711"]
    )
    ttl_seconds: Ttl = Field(description="How long the lease lasts unless it is renewed.", examples=[30])
    wait_seconds: float = Field(0, ge=0, le=30, description="How long to stand in line for it; 0 asks once.")
    claim_id: ClaimId | None = Field(
        None,
        description="Of your own choice, unguessable. Sent again, it gives the same reservation while that holds, or keeps "
        "your place in the line.",
    )


class RenewLock(LockName):
    token: Token
    ttl_seconds: Ttl | None = Field(None, description="From now on; null is what you acquired it for. Never shortens.")


class ReleaseLock(LockName):
    token: Token


class VerifyLock(LockName):
    fence: Fence = Field(description="The fence that somebody has handed to you.", examples=[7])


class BreakLock(LockName):
    reason: Reason = Field(description="For the audit.", examples=["its holder was shot, and deploys wait"])
    fence: Fence | None = Field(
        None, description="Break only the reservation with this fence, so that a repeat cannot hit the next holder."
    )


class LockStateName(StrEnum):
    HELD = "held"
    FREE = "free"


class ListLocksParams(PageParams):
    state: LockStateName = Field(LockStateName.HELD, description="`free`: names that were held once, until purged.")
    name: Key | None = Field(None, description="Only this one.")


class LockReservation(Read):
    token: str = Field(examples=[TOKEN])
    fence: int = Field(description="Grows with every grant of this name, for ever.", examples=[7])
    expires_at: str = Field(examples=[AT])


class AcquiredLock(Read):
    name: str = Field(examples=["billing.invoices"])
    reservation: LockReservation
    replayed: bool = Field(description="This very claim got it before.")


class RenewedLock(Read):
    name: str
    fence: int = Field(examples=[7])
    expires_at: str = Field(examples=[AT])


class ReleasedLock(Read):
    name: str
    fence: int = Field(description="Of the reservation that was released.", examples=[7])
    replayed: bool = Field(description="It had been released with this token before.")


class VerifiedLock(Read):
    name: str
    current: bool = Field(description="Whoever got this fence holds the lock at this moment.")
    fence: int = Field(description="The newest of this name; 0 if it was never held.", examples=[7])
    held: bool = Field(description="Somebody holds it.")


class BrokenLock(Read):
    name: str
    broken: bool = Field(description="False: it was not held (or not with this fence).")
    fence: int = Field(description="The newest of this name.", examples=[7])
    owner: str | None = Field(description="Who held it, or holds it.", examples=["web-3:4711"])


class LockRead(Read):
    name: str = Field(examples=["billing.invoices"])
    state: LockStateName
    owner: str | None = Field(description="Of the newest reservation.", examples=["web-3:4711"])
    fence: int = Field(examples=[7])
    ttl_seconds: float | None = Field(examples=[30.0])
    acquired_at: str | None = Field(examples=[AT])
    expires_at: str | None = Field(description="When the lease ends; null if nobody holds it.", examples=[AT])
    waiters: int = Field(description="How many stand in line, on all replicas.", examples=[2])


class LockListRead(PageRead):
    items: list[LockRead]
