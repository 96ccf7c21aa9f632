"""Reservations: the one place where tokens and fences are minted, digested and matched.

A *grant* is one handing out of work, made in one transaction for any number of things. Its secret is fresh and random;
the database holds only the SHA-256 digest of it. The token of one thing in a grant is

    secret (32 bytes) || HMAC-SHA256(installation key, secret || thing || fence) (32 bytes)

so the token of one thing says nothing about the token of another, and neither the database alone nor a holder's own
token is enough to make one. The thing's row keeps the digest and the fence; a conditional write repeats both.

A caller's `claim_id` must give the same tokens again while they are held. The grant's secret is then kept *sealed*: masked
by a stream that only the claim id yields. The claim id itself is stored as a digest.

Nothing here may know SQL, HTTP or a primitive.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from functools import lru_cache

import msgspec

from app.errors import RESERVATION_LOST, SETTLEMENT_CONFLICT, Refusal
from app.record import record

_packed = msgspec.msgpack.Encoder().encode  # says of each part what it is and where it ends

SECRET_BYTES = 32
TOKEN_BYTES = 64
TOKEN_CHARS = 86


@record
class Grant:
    """The secret of one handing out, and what the rows keep of it."""

    secret: bytes
    digest: bytes


@record
class Presented:
    """A token as a caller sent it: `digest` finds the grant, `proof` must fit the thing and its fence."""

    secret: bytes
    digest: bytes
    proof: bytes


def mint_grant() -> Grant:
    secret = secrets.token_bytes(SECRET_BYTES)
    return Grant(secret, hashlib.sha256(secret).digest())


@lru_cache(maxsize=4)  # an installation has one
def _keyed(key: bytes) -> hmac.HMAC:
    return hmac.new(key, digestmod="sha256")


def _proof(key: bytes, secret: bytes, thing: bytes, fence: int) -> bytes:
    # not hmac.digest: it sets up the key each time and lets go of the interpreter lock, which is long in coming back
    signing = _keyed(key).copy()
    signing.update(secret + thing + fence.to_bytes(8, "big"))
    return signing.digest()


def token(key: bytes, grant: Grant, thing: bytes, fence: int) -> str:
    """The token that is handed out for `thing` (its id) at `fence`; 86 characters, URL-safe."""
    raw = grant.secret + _proof(key, grant.secret, thing, fence)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def present(text: str) -> Presented | None:
    """Take a token apart; None if it cannot be one of ours."""
    if len(text) != TOKEN_CHARS:
        return None
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except ValueError:
        return None
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii") != text:
        return None  # another spelling of the same bytes: a token has one
    secret = raw[:SECRET_BYTES]
    return Presented(secret, hashlib.sha256(secret).digest(), raw[SECRET_BYTES:])


def matches(key: bytes, presented: Presented, grant_digest: bytes | None, thing: bytes, fence: int) -> bool:
    """Whether the token is the one of this thing at this fence. Constant time in what is secret."""
    if grant_digest is None or not hmac.compare_digest(presented.digest, grant_digest):
        return False
    return hmac.compare_digest(presented.proof, _proof(key, presented.secret, thing, fence))


def claim_digest(key_id: str, claim_id: str) -> bytes:
    """What the database keeps of a caller's claim id; bound to the API key that sent it."""
    return hashlib.sha256(f"claim\0{key_id}\0{claim_id}".encode()).digest()


def _mask(key: bytes, key_id: str, claim_id: str, digest: bytes) -> bytes:
    # the digest of the grant makes the stream different for each use of the same claim id
    return hmac.digest(key, b"seal\0" + digest + f"{key_id}\0{claim_id}".encode(), "sha256")


def seal(key: bytes, grant: Grant, key_id: str, claim_id: str) -> bytes:
    """The grant's secret, readable again only with the claim id."""
    return _xor(grant.secret, _mask(key, key_id, claim_id, grant.digest))


def unseal(key: bytes, sealed: bytes, digest: bytes, key_id: str, claim_id: str) -> Grant | None:
    """The grant behind a repeated claim, or None if the claim id does not open it."""
    secret = _xor(sealed, _mask(key, key_id, claim_id, digest))
    return Grant(secret, digest) if hmac.compare_digest(hashlib.sha256(secret).digest(), digest) else None


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def settlement_digest(*parts: bytes | str | float | None) -> bytes:
    """One digest over a settlement's content, so that a repeat can be told from a contradiction."""
    return hashlib.sha256(_packed(parts)).digest()


# -- what is answered to a token that does not hold ------------------------------------------------------------------------

WHY_LOST = {
    "expired": "The reservation ended before this call.",
    "superseded": "The {thing} has been given to somebody else since.",
    "settled": "What this reservation held has been settled.",
    "cancelled": "The {thing} was cancelled.",
    "unknown_token": "This is not a token of this {thing}.",
}


def lost(thing: str, reason: str, fence: int | None = None) -> Refusal:
    """`reservation_lost` with its reason; `current_fence` only where it tells the caller something true."""
    extra: dict[str, object] = {"reason": reason}
    if fence is not None:
        extra["current_fence"] = fence
    why = WHY_LOST[reason].format(thing=thing)
    return Refusal(RESERVATION_LOST, f"{why} Stop the work; nothing was changed.", extra=extra)


def settled_otherwise() -> Refusal:
    return Refusal(SETTLEMENT_CONFLICT, "This reservation was settled with other content; the first settlement stands.")
