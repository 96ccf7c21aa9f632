"""Request and response models of the cache."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from app.http.paging import PageParams, PageRead
from app.jsontext import Body, ClaimId, Name, OpaqueJson, Read, Token, wrong

AT = "2026-01-31T08:30:00.000000Z"
LATER = "2026-01-31T08:35:00.000000Z"
TOKEN = "c29tZSBvcGFxdWUgdG9rZW4…"  # noqa: S105 - an example
VALUE: dict[str, Any] = {"plan": "pro", "seats": 12}
MOST = 2**53 - 1
Ttl = Annotated[float, Field(ge=0.001, le=315_360_000)]
Stale = Annotated[float, Field(ge=0, le=315_360_000)]


def _addressable(value: str) -> str:
    if value in (".", ".."):
        raise wrong(
            "must not be `.` or `..`: clients take them out of a path, and the call would reach another namespace"
        )
    return value


NamespaceName = Annotated[Name, AfterValidator(_addressable)]
Limit = Annotated[int, Field(ge=1, le=MOST)]


class PutEntry(Body):
    value: OpaqueJson = Field(description="Any JSON value, kept byte for byte.", examples=[VALUE])
    ttl_seconds: Ttl | None = Field(
        None, description="How long it is fresh. Null is what the policy of the namespace says.", examples=[300]
    )
    stale_seconds: Stale | None = Field(
        None,
        description="For how long after that it may still be given, as `stale`, while somebody fills it anew. Null is what the "
        "policy says, else 0.",
        examples=[60],
    )
    version: Name | None = Field(
        None,
        description="What made the value. Where the namespace has a version, any other one is refused.",
        examples=["v3"],
    )


class FillEntry(Body):
    token: Token
    value: OpaqueJson = Field(description="Any JSON value, kept byte for byte.", examples=[VALUE])
    ttl_seconds: Ttl | None = Field(None, description="As for PUT.", examples=[300])
    stale_seconds: Stale | None = Field(None, description="As for PUT.", examples=[60])


class FailFill(Body):
    token: Token


class RememberEntry(Body):
    lease_seconds: float = Field(
        30, ge=1, le=3600, description="How long the filling is yours, if it comes to you.", examples=[30]
    )
    wait_seconds: float = Field(
        0,
        ge=0,
        le=30,
        description="While another fills and there is nothing to give meanwhile, wait so long for the value.",
        examples=[5],
    )
    claim_id: ClaimId | None = Field(
        None, description="Of your own choice, unguessable. Sent again, it gives the same filling while that holds."
    )


class EntryState(StrEnum):
    FRESH = "fresh"
    STALE = "stale"


class RememberedState(StrEnum):
    FRESH = "fresh"
    STALE = "stale"
    FILL = "fill"
    FILLING = "filling"


class EntryRead(Read):
    value: Any = Field(description="Byte for byte as it was put.", examples=[VALUE])
    state: EntryState = Field(description="`stale`: its time is over, and it may still be used.")
    age_seconds: float = Field(description="Since it was stored.", examples=[12.5])
    version: str | None = Field(examples=["v3"])
    expires_at: str = Field(description="When it stops being fresh.", examples=[AT])
    stale_until: str = Field(description="When it is gone.", examples=[LATER])


class StoredEntry(Read):
    namespace: str = Field(examples=["plans"])
    key: str = Field(examples=["customer/9"])
    version: str | None = Field(examples=["v3"])
    expires_at: str = Field(description="When it stops being fresh.", examples=[AT])
    stale_until: str = Field(description="When it is gone.", examples=[LATER])


class DeletedEntry(Read):
    namespace: str = Field(examples=["plans"])
    key: str = Field(examples=["customer/9"])
    deleted: bool = Field(description="There was a value.")


class ClearedNamespace(Read):
    namespace: str = Field(examples=["plans"])
    cleared: int = Field(description="How many values that were.", examples=[1204])


class FillReservation(Read):
    token: str = Field(examples=[TOKEN])
    fence: int = Field(description="Grows with every filling, for ever.", examples=[7])
    expires_at: str = Field(examples=[AT])


class RememberedEntry(Read):
    state: RememberedState = Field(
        description="`fresh`, `stale`: here is the value. `fill`: make it, and bring it (`fill`) or say that you could not "
        "(`fill-failed`). `filling`: another is at it; ask again."
    )
    value: Any = Field(description="If there is one: for `fill` the stale one, else null.", examples=[VALUE])
    age_seconds: float | None = Field(description="Of the value.", examples=[12.5])
    reservation: FillReservation | None = Field(description="If you are to fill it.")
    expires_at: str | None = Field(description="If another fills it: when its lease ends.", examples=[AT])
    replayed: bool = Field(description="This very claim got the reservation before.")


class FilledEntry(Read):
    namespace: str = Field(examples=["plans"])
    key: str = Field(examples=["customer/9"])
    fence: int = Field(examples=[7])
    replayed: bool = Field(description="It was said before, with the same content.")


class OnFailureName(StrEnum):
    SERVE_STALE = "serve_stale"
    ERROR = "error"


class PutCachePolicy(Body):
    ttl_seconds: Ttl | None = Field(
        None, description="Of values that name none. Null: each must name its own.", examples=[300]
    )
    stale_seconds: Stale = Field(0, description="Of values that name none.", examples=[60])
    version: Name | None = Field(
        None,
        description="What makes the values: change it with the code or the shape of the data. All values from before the change "
        "are gone at once.",
        examples=["v3"],
    )
    on_failure: OnFailureName = Field(
        OnFailureName.SERVE_STALE,
        description="What becomes of a stale value if its filler says that it failed. `serve_stale`: it is given until its time "
        "is over. `error`: it is gone.",
    )
    max_entries: Limit | None = Field(
        None, description="Values at most; those used least recently make room. Null: no limit.", examples=[100_000]
    )
    max_bytes: Limit | None = Field(
        None, description="Bytes of all values together at most. Null: no limit.", examples=[67_108_864]
    )


class CachePolicyRead(Read):
    namespace: str = Field(examples=["plans"])
    ttl_seconds: float | None = Field(examples=[300])
    stale_seconds: float = Field(examples=[60])
    version: str | None = Field(examples=["v3"])
    on_failure: OnFailureName
    max_entries: int | None = Field(examples=[100_000])
    max_bytes: int | None = Field(examples=[67_108_864])
    updated_at: str | None = Field(description="When it was set; null: this namespace has no policy.", examples=[AT])
    entries: int = Field(
        description="Values that are there, with those whose time is over and that are not deleted yet.",
        examples=[1204],
    )
    bytes: int = Field(description="Their bytes.", examples=[4_816_000])


class ListPoliciesParams(PageParams):
    pass


class CachePolicyListRead(PageRead):
    items: list[CachePolicyRead]
