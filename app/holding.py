"""Holdings: what is held by one row, by one holder after the other (a lock, an idempotency key, the filling of a cache entry).

Such a row keeps its newest reservation, also after that has ended, and of the ones before it how they ended. So the holder of
an earlier one, who repeats a settlement whose answer was lost, is told what is true, though somebody else holds the thing now.
A leaf beside `reservations`: nothing here may know SQL, HTTP or a primitive.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

from app import reservations
from app.access import Caller
from app.errors import Refusal
from app.record import record
from app.reservations import Grant, Presented

MOST_PAST = 8
_PAST = struct.Struct(">qB32s32s")
PAST_BYTES = MOST_PAST * _PAST.size
NOTHING = bytes(32)


class End(IntEnum):
    """How a reservation ended. Stored, so a number never changes its meaning."""

    HELD = 0  # it has not, though its time may be over
    SETTLED = 1
    EXPIRED = 2
    CANCELLED = 3

    @property
    def reason(self) -> str:
        """The `reason` of the `reservation_lost` that its holder gets."""
        return {End.HELD: "expired", End.SETTLED: "settled", End.EXPIRED: "expired", End.CANCELLED: "cancelled"}[self]


@record
class Ended:
    """A reservation that is over. `settlement`: the digest of what its holder said; zeros if it said nothing."""

    fence: int
    end: End
    grant: bytes
    settlement: bytes


@record
class Standing:
    """What a token is worth: it holds the thing, or it did (`ended`), or it is none of this thing's (`foreign`)."""

    holds: bool = False
    ended: Ended | None = None
    newest: bool = False  # no other reservation was given out after the one that ended

    @property
    def foreign(self) -> bool:
        return not self.holds and self.ended is None

    def lost(self, thing: str, fence: int | None) -> Refusal:
        """Why it holds nothing any more. `fence`: the newest of the thing, where there is one."""
        if self.ended is None:
            return reservations.lost(thing, "unknown_token", fence)
        if self.newest or self.ended.end is End.SETTLED:
            return reservations.lost(thing, self.ended.end.reason, fence)
        return reservations.lost(thing, "superseded", fence)


def stand(key: bytes, row: Any, thing: bytes, text: str, now: int, until: int | None) -> Standing:
    """Judge a token as it was sent against a row with the columns of `app.db.held`. `until`: when the lease ends."""
    presented = reservations.present(text)
    if presented is None:
        return Standing()
    if reservations.matches(key, presented, row.grant_digest, thing, row.fence):
        if row.ended == End.HELD and until is not None and until > now:
            return Standing(holds=True)
        return Standing(ended=_newest(row), newest=True)
    return Standing(ended=_earlier(key, presented, row, thing))


def _earlier(key: bytes, presented: Presented, row: Any, thing: bytes) -> Ended | None:
    for ended in unpack(row.past):
        if reservations.matches(key, presented, ended.grant, thing, ended.fence):
            return ended
    return None


def _newest(row: Any) -> Ended:
    # one whose time is over before a sweep has seen it has expired as well
    end = End.EXPIRED if row.ended == End.HELD else End(row.ended)
    settlement = NOTHING if row.settlement_digest is None else bytes(row.settlement_digest)
    return Ended(row.fence, end, bytes(row.grant_digest), settlement)


# -- the past of a row -----------------------------------------------------------------------------------------------------


def pushed(row: Any) -> bytes | None:
    """`past` of a row whose newest reservation makes way for another: that one first, and the oldest forgotten."""
    if row.grant_digest is None:
        return None if row.past is None else bytes(row.past)
    newest = _newest(row)
    packed = _PAST.pack(newest.fence, newest.end, newest.grant, newest.settlement)
    return (packed + bytes(row.past or b""))[:PAST_BYTES]


def unpack(past: bytes | None) -> list[Ended]:
    """Newest first."""
    return [
        Ended(fence, End(end), grant, settlement) for fence, end, grant, settlement in _PAST.iter_unpack(past or b"")
    ]


# -- claims that may be repeated -------------------------------------------------------------------------------------------


def claim_columns(key: bytes, grant: Grant, caller: Caller, claim_id: str | None) -> tuple[bytes | None, bytes | None]:
    """`claim_digest` and `sealed` of a grant to this caller."""
    if claim_id is None:
        return None, None
    key_id = caller.principal.key_id
    return reservations.claim_digest(key_id, claim_id), reservations.seal(key, grant, key_id, claim_id)


def recalled(
    key: bytes, row: Any, thing: bytes, caller: Caller, claim_id: str | None, now: int, until: int | None
) -> str | None:
    """The token that this very claim was given before, if it still holds."""
    if claim_id is None or row.claim_digest is None or row.ended != End.HELD or until is None or until <= now:
        return None
    key_id = caller.principal.key_id
    if bytes(row.claim_digest) != reservations.claim_digest(key_id, claim_id):
        return None
    grant = reservations.unseal(key, bytes(row.sealed), bytes(row.grant_digest), key_id, claim_id)
    return None if grant is None else reservations.token(key, grant, thing, row.fence)
