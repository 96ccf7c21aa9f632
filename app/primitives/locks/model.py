"""What goes in and out of the verbs of locks. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from enum import IntEnum

from app.access import Caller, Principal
from app.ids import new_id
from app.record import record
from app.reservations import claim_digest, settlement_digest

RELEASED = settlement_digest("released")


class State(IntEnum):
    """Stored, so a number never changes its meaning."""

    FREE = 0
    HELD = 1

    @property
    def text(self) -> str:
        return self.name.lower()


def digest_of(name: str) -> bytes:
    """What a lock is found by."""
    return hashlib.sha256(b"lock\0" + name.encode()).digest()


@record
class Acquire:
    """A call for a lock. `lease` and `wait` in microseconds; without a wait it is answered at once. `place`: who stands in the
    line, the same for a repeat of the same claim; `number` orders those of one process. It is what a desk takes for a claim.
    """

    name: str
    digest: bytes
    owner: str
    lease: int
    wait: int
    caller: Caller
    claim_id: str | None
    place: bytes
    number: int

    @property
    def places(self) -> tuple[bytes]:
        return (self.digest,)

    @property
    def identity(self) -> Hashable | None:
        return None if self.claim_id is None else self.place

    @property
    def limit(self) -> int:
        return 1

    def wants(self, flow: bytes) -> bool:
        return flow == self.digest


def place_of(caller: Caller, claim_id: str | None, digest: bytes) -> bytes:
    """The identity of a place in the line of a lock."""
    if claim_id is None:
        return hashlib.sha256(b"place\0" + new_id() + digest).digest()
    return hashlib.sha256(b"place\0" + claim_digest(caller.principal.key_id, claim_id) + digest).digest()


@record
class Acquired:
    """A lock in somebody's hands. `expires_at` in microseconds."""

    name: str
    token: str
    fence: int
    expires_at: int
    replayed: bool = False


@record
class InLine:
    """It is another's turn; this call has its place."""


@record
class Leave:
    """The wait of a call is over. A claim that may be repeated keeps its place for a moment."""

    acquire: Acquire


@record
class Hold:
    """A renewal or a release with a token. `lease`: None asks for what the acquiring call asked for."""

    name: str
    digest: bytes
    token: str
    lease: int | None = None


@record
class Renewed:
    name: str
    fence: int
    expires_at: int


@record
class Released:
    name: str
    fence: int
    replayed: bool = False


@record
class Break:
    """An operator ends a reservation, whoever has it; with `fence` only that one. `audit_id` names the entry."""

    name: str
    digest: bytes
    reason: str
    fence: int | None
    caller: Caller
    audit_id: bytes


@record
class Broken:
    name: str
    broken: bool
    fence: int
    owner: str | None


@record
class Verify:
    name: str
    digest: bytes
    fence: int


@record
class Verified:
    """`fence`: the newest that the name has or may have had; 0 if none was given out."""

    current: bool
    fence: int
    held: bool


@record
class Filter:
    """Which locks a page is of. `after`: the (due_at, digest) of the row before it."""

    state: State
    name: str | None
    limit: int
    after: tuple[int, bytes] | None
    principal: Principal


@record
class Lock:
    """A lock as people see it."""

    name: str
    state: State
    owner: str | None
    fence: int
    lease: int | None
    acquired_at: int | None
    due_at: int
    digest: bytes
    waiters: int
