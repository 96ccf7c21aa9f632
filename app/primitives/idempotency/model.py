"""States of idempotency keys, and what goes in and out of their verbs. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import rfc8785

from app.access import Caller, Principal
from app.errors import VALIDATION_FAILED, FieldError, Refusal
from app.record import record
from app.reservations import claim_digest, settlement_digest

LARGEST_INTEGER = 2**53 - 1  # of RFC 8785: what a double holds exactly
OWNER_LOST = "owner_lost"


class State(IntEnum):
    """Stored, so a number never changes its meaning."""

    RUNNING = 1
    OPEN = 2
    COMPLETED = 3
    FAILED = 4
    UNKNOWN = 5

    @property
    def text(self) -> str:
        return self.name.lower()


class OnOwnerLost(StrEnum):
    """What becomes of a key whose owner lets its lease end. Stored by its place here."""

    RECONCILE = "reconcile"
    REOPEN = "reopen"
    FAIL = "fail"

    @property
    def number(self) -> int:
        return list(OnOwnerLost).index(self)

    @staticmethod
    def of(number: int) -> OnOwnerLost:
        return list(OnOwnerLost)[number]


class Outcome(StrEnum):
    """What a check is told."""

    ACQUIRED = "acquired"
    IN_PROGRESS = "in_progress"
    REPLAY = "replay"
    RECONCILE = "reconcile"
    FAILED = "failed"


class Verdict(StrEnum):
    COMPLETED = "completed"
    REOPEN = "reopen"
    FAILED = "failed"


# -- digests ---------------------------------------------------------------------------------------------------------------


def key_digest(scope: str, key: str) -> bytes:
    """What a key is found by. The scope's length keeps `a` + `bc` apart from `ab` + `c`."""
    text = scope.encode()
    return hashlib.sha256(b"idempotency\0" + len(text).to_bytes(2, "big") + text + key.encode()).digest()


def fingerprint_of(text: str) -> bytes:
    """The digest of a fingerprint that the caller made itself."""
    return hashlib.sha256(b"fingerprint\0" + text.encode()).digest()


def request_digest(raw: bytes) -> bytes:
    """The digest of a JSON value in its canonical form (RFC 8785), so that order, spacing and spelling do not count.

    Integers past what a double holds exactly, which RFC 8785 does not tell apart, count by their digits. Raises: Refusal
    `validation_failed` for an object that names a member twice: what it means depends on who reads it.
    """
    value = json.loads(raw, object_pairs_hook=_members, parse_int=_integer, parse_float=_number)
    return hashlib.sha256(b"request\0" + rfc8785.dumps(value)).digest()


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        detail = "names a member of an object twice"
        raise Refusal(VALIDATION_FAILED, "The request is not valid.", errors=(FieldError("#/request", detail),))
    return members


def _integer(digits: str) -> int | dict[str, str]:
    small = len(digits) <= 17 and abs(int(digits)) <= LARGEST_INTEGER
    return (
        int(digits) if small else {"\0integer": digits}
    )  # a member of that name in a request means mischief to itself


def _number(text: str) -> float | dict[str, str]:
    number = float(text)
    if abs(number) > LARGEST_INTEGER and (exact := Decimal(text)) == exact.to_integral_value():
        return {"\0integer": format(exact, ".0f")}  # an integer in another spelling
    return number


# -- check -----------------------------------------------------------------------------------------------------------------


@record
class Check:
    """A call that asks for a key. `lease` and `retention` in microseconds. It is what a desk takes for a claim."""

    digest: bytes
    scope: str
    fingerprint: bytes
    lease: int
    retention: int
    on_owner_lost: OnOwnerLost
    caller: Caller
    claim_id: str | None

    @property
    def places(self) -> tuple[bytes]:
        return (self.digest,)

    @property
    def identity(self) -> Hashable | None:
        if self.claim_id is None:
            return None
        return claim_digest(self.caller.principal.key_id, self.claim_id) + self.digest

    @property
    def limit(self) -> int:
        return 1

    def wants(self, flow: bytes) -> bool:
        return flow == self.digest


@record
class Failure:
    category: str
    message: str | None


@record
class Checked:
    """The answer to a check. `expires_at` in microseconds: of the reservation, its own or another's; `attempt` counts grants
    since the key was new. `reason`, of a key to reconcile: `owner_lost`, or the category that its owner gave.
    """

    outcome: Outcome
    attempt: int
    fence: int
    token: str | None = None
    expires_at: int | None = None
    result: bytes | None = None
    failure: Failure | None = None
    reason: str | None = None
    replayed: bool = False
    digest: bytes = b""


# -- settle ----------------------------------------------------------------------------------------------------------------


@record
class Settle:
    """What an owner says became of its work. `state` is what the key comes to be; `digest` is over all that was said."""

    scope: str
    key: str
    key_digest: bytes
    token: str
    state: State
    digest: bytes
    result: bytes | None = None
    category: str | None = None
    message: str | None = None


@record
class Settled:
    state: State
    attempt: int
    fence: int
    replayed: bool = False


def said(state: State, result: bytes | None, category: str | None, message: str | None) -> bytes:
    """The digest of a settlement's content."""
    return settlement_digest(state.text, result, category, message)


@record
class Beat:
    """A heartbeat. `lease`: None asks for what the check asked for."""

    key_digest: bytes
    token: str
    lease: int | None


@record
class Renewed:
    fence: int
    expires_at: int


# -- verdicts --------------------------------------------------------------------------------------------------------------


@record
class Reconcile:
    scope: str
    key_digest: bytes
    verdict: Verdict
    result: bytes | None
    evidence: bytes
    caller: Caller
    audit_id: bytes

    @property
    def digest(self) -> bytes:
        """Of what is decided; the evidence may be told in other words."""
        return settlement_digest(self.verdict.value, self.result)


# -- reading ---------------------------------------------------------------------------------------------------------------


@record
class Filter:
    """Which keys a page is of. `after`: the (due_at, digest) of the row before it."""

    state: State
    scope: str | None
    limit: int
    after: tuple[int, bytes] | None
    principal: Principal


@record
class KeyRead:
    """A key as people see it."""

    digest: bytes
    scope: str
    state: State
    attempt: int
    fence: int
    on_owner_lost: OnOwnerLost
    created_at: int
    ended_at: int | None
    due_at: int | None
    category: str | None
