"""Drives the verbs of locks without HTTP: a minimal host, and each verb in one line."""

from __future__ import annotations

import itertools
from typing import Any

from app.access import Caller
from app.clock import micros
from app.ids import new_id
from app.primitives.locks.here import Here
from app.primitives.locks.model import (
    Acquire,
    Acquired,
    Break,
    Broken,
    Hold,
    InLine,
    Leave,
    Released,
    Renewed,
    Verified,
    Verify,
    digest_of,
    place_of,
)
from app.primitives.locks.ops import control, sweep
from app.primitives.locks.ops.acquire import acquire, attend, leave, peek
from app.primitives.locks.ops.held import give_back, release, renew
from app.settings import Settings
from tests.primitives.verbs import CALLER, Host, Verbs, good, reason

__all__ = ["Locks", "good", "host", "reason"]

_numbers = itertools.count(1)


def host(settings: Settings | None = None) -> Host:
    return Host("locks", Here, settings)


class Locks(Verbs):
    """The verbs of one process. What is refused is given as a value by the plural verbs, and raised by the others."""

    def wanted(
        self,
        name: str = "l",
        *,
        ttl: float = 60,
        wait: float = 0,
        claim_id: str | None = None,
        owner: str = "o",
        caller: Caller = CALLER,
    ) -> Acquire:
        digest = digest_of(name)
        place = place_of(caller, claim_id, digest)
        return Acquire(name, digest, owner, micros(ttl), micros(wait), caller, claim_id, place, next(_numbers))

    def acquire_all(self, *commands: Acquire) -> list[Any]:
        return list(self.database.run(acquire, commands))

    def try_(self, name: str = "l", **options: Any) -> Any:
        """What one call gives: `Acquired`, `InLine` or a refusal."""
        return self.acquire_all(self.wanted(name, **options))[0]

    def take(self, name: str = "l", **options: Any) -> Acquired:
        """A lock that must be free."""
        outcome = good(self.try_(name, **options))
        assert isinstance(outcome, Acquired), outcome
        return outcome

    def stand(self, name: str = "l", *, wait: float = 30, **options: Any) -> Acquire:
        """A call that must get a place in the line."""
        command = self.wanted(name, wait=wait, **options)
        (outcome,) = self.acquire_all(command)
        assert isinstance(outcome, InLine), outcome
        return command

    def again(self, command: Acquire) -> Any:
        """Another round for a call that stands in line."""
        return self.acquire_all(command)[0]

    def leave(self, command: Acquire) -> Any:
        return self.database.run(leave, [Leave(command)])[0]

    def attend(self) -> None:
        self.database.run(attend, [None])

    def release_all(self, *held: Acquired) -> list[Any]:
        return list(self.database.run(release, [self.hold(one) for one in held]))

    def release(self, held: Acquired) -> Released:
        return good(self.release_all(held)[0])  # type: ignore[no-any-return]

    def renew_all(self, *holds: Hold) -> list[Any]:
        return list(self.database.run(renew, holds))

    def renew(self, held: Acquired, ttl: float | None = 60) -> Renewed:
        return good(self.renew_all(self.hold(held, ttl))[0])  # type: ignore[no-any-return]

    def hold(self, held: Acquired, ttl: float | None = None) -> Hold:
        return Hold(held.name, digest_of(held.name), held.token, None if ttl is None else micros(ttl))

    def give_back(self, held: Acquired) -> None:
        self.database.run(give_back, [held])

    def break_(self, name: str = "l", fence: int | None = None, caller: Caller = CALLER) -> Broken:
        command = Break(name, digest_of(name), "because", fence, caller, new_id())
        return good(self.database.run(control.break_locks, [command])[0])  # type: ignore[no-any-return]

    def verify(self, name: str, fence: int) -> Verified:
        found: Verified = self.database.read(control.verify, [Verify(name, digest_of(name), fence)])[0]
        return found

    def peek(self, *names: str) -> list[str]:
        """Those of these that nobody holds."""
        of = {digest_of(name): name for name in names}
        return [of[digest] for digest in self.database.read(peek, list(of))]

    def expire(self, most: int = sweep.BATCH) -> int:
        return int(self.database.run(sweep.expire, [sweep.Batch(most)])[0])

    def purge(self, most: int = sweep.BATCH) -> int:
        return int(self.database.run(sweep.purge, [sweep.Batch(most)])[0])
