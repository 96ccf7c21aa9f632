"""What goes in and out of the cache's verbs. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from enum import IntEnum, StrEnum

from app.access import Caller, Principal
from app.record import record
from app.reservations import claim_digest, settlement_digest

FAILED = settlement_digest("fill-failed")


def digest_of(namespace: str, key: str) -> bytes:
    """What an entry is found by. A namespace holds no zero byte, so no two pairs are one text."""
    return hashlib.sha256(f"{namespace}\0{key}".encode()).digest()


class OnFailure(IntEnum):
    """What becomes of a stale value whose fill failed. Stored, so a number never changes its meaning."""

    SERVE_STALE = 1
    ERROR = 2


class Found(StrEnum):
    """What one who asks for a value is told."""

    FRESH = "fresh"
    STALE = "stale"
    FILL = "fill"
    FILLING = "filling"


@record
class Place:
    """Where an entry stands."""

    namespace: str
    key: str
    digest: bytes


def place_of(namespace: str, key: str) -> Place:
    return Place(namespace, key, digest_of(namespace, key))


# -- values ----------------------------------------------------------------------------------------------------------------


@record
class Value:
    """A value that is there. Moments in microseconds; `now`: when it was looked at."""

    found: Found
    value: bytes
    version: str | None
    stored_at: int
    fresh_until: int
    stale_until: int
    now: int
    filling: bool = False  # somebody fills it anew at this moment

    @property
    def age(self) -> int:
        return max(0, self.now - self.stored_at)


@record
class Put:
    """A value to be put. `ttl`, `stale`: microseconds; None is what the policy says."""

    place: Place
    value: bytes
    ttl: int | None
    stale: int | None
    version: str | None


@record
class Stored:
    """Until when a value that was stored is fresh, and may be used; microseconds."""

    fresh_until: int
    stale_until: int
    version: str | None


# -- filling ---------------------------------------------------------------------------------------------------------------


@record
class Remember:
    """A call that wants the value, or else to fill it. `lease`: microseconds. It is what a desk takes for a claim."""

    place: Place
    lease: int
    caller: Caller
    claim_id: str | None

    @property
    def places(self) -> tuple[bytes]:
        return (self.place.digest,)

    @property
    def identity(self) -> Hashable | None:
        if self.claim_id is None:
            return None
        return claim_digest(self.caller.principal.key_id, self.claim_id) + self.place.digest

    @property
    def limit(self) -> int:
        return 1

    def wants(self, flow: bytes) -> bool:
        return flow == self.place.digest


@record
class Remembered:
    """`value`: if there is one that may be used, for a filler the stale one. `expires_at`: when the lease of the filler ends,
    of this caller (with its `token`) or of another.
    """

    found: Found
    value: Value | None = None
    token: str | None = None
    fence: int = 0
    expires_at: int | None = None
    replayed: bool = False
    place: Place | None = None


@record
class Fill:
    """What a filler brings. `value` None: it failed. `ttl`, `stale`: microseconds; None is what the policy says."""

    place: Place
    token: str
    value: bytes | None
    ttl: int | None = None
    stale: int | None = None

    @property
    def said(self) -> bytes:
        """The digest of what it says."""
        return FAILED if self.value is None else settlement_digest("fill", self.value, self.ttl, self.stale)


@record
class Filled:
    """What a filler said is taken: its value is stored, or its failure. `replayed`: it was said before."""

    fence: int
    replayed: bool = False


# -- namespaces ------------------------------------------------------------------------------------------------------------


@record
class Policy:
    """The rules of a namespace. Microseconds; None: no such limit, no such default."""

    ttl: int | None
    stale: int
    version: str | None
    on_failure: OnFailure
    max_entries: int | None
    max_bytes: int | None


@record
class PutPolicy:
    namespace: str
    policy: Policy
    caller: Caller
    audit_id: bytes


@record
class Clear:
    """To take everything away that a namespace holds."""

    namespace: str
    caller: Caller
    audit_id: bytes


@record
class Namespace:
    """A namespace as people see it. `policy` None: it has none."""

    name: str
    policy: Policy | None
    policy_at: int | None
    entries: int
    bytes: int


@record
class Filter:
    """Which namespaces a page is of. `after`: the name of the one before it."""

    limit: int
    after: str | None
    principal: Principal
