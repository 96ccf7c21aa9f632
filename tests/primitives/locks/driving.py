"""Drives the verbs of locks without HTTP: a minimal host, and each verb in one line."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from app.access import ANONYMOUS, Caller
from app.clock import micros
from app.db.database import Database
from app.db.tx import Tx
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
from tests.primitives.outbox.driving import good, reason

__all__ = ["Host", "Locks", "good", "reason"]

CALLER = Caller(ANONYMOUS, "request-1")
TOKEN_KEY = secrets.token_bytes(32)
_numbers = itertools.count(1)


class Host:
    """What an op needs of a process: settings, the token key, and its memory of the locks. Records what it is told."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.token_key = TOKEN_KEY
        self.woken: list[dict[bytes, int]] = []
        self.here = Here(wake=lambda names: self.woken.append(dict(names)))

    def state(self, name: str) -> Any:
        assert name == "locks"
        return self.here


@dataclass
class Locks:
    """The verbs of one process. What is refused is given as a value by the plural verbs, and raised by the others."""

    database: Database
    host: Host

    def __post_init__(self) -> None:
        self.database.host = self.host

    @property
    def now(self) -> int:
        return self.database.clock.now()

    def move(self, seconds: float) -> None:
        """Move the database's time as this process sees it."""
        self.database.clock.shift_micros += micros(seconds)

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

    def rows(self, table: Any, *where: Any) -> list[Any]:
        """Rows of a table past every verb."""
        found: list[Any] = self.database.read(lambda tx, _: tx.conn.execute(select(table).where(*where)).all(), None)
        return found

    def repeat(self, op: Callable[..., Any], *commands: Any) -> tuple[list[Any], list[Any]]:
        """Run a unit whose COMMIT was done and whose answer was lost: what the first try gave, and what the second gives."""
        memo: dict[Any, Any] = {}

        def trying(*, repeated: bool) -> Callable[[Tx, Sequence[Any]], Sequence[Any]]:
            def run(tx: Tx, given: Sequence[Any]) -> Sequence[Any]:
                own = Tx(tx.conn, tx.dialect, tx.now, tx.host, tx.shift, repeated, memo)
                outcomes = op(own, given)
                if repeated:
                    tx.after_commit.extend(own.after_commit)
                return list(outcomes)

            return run

        first = self.database.run(trying(repeated=False), commands)
        return list(first), list(self.database.run(trying(repeated=True), commands))
