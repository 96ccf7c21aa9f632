"""What an op gets: the open transaction and everything it may use from outside. Ops read no clock and no engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy import Connection

from app.db.dialects.base import Dialect


@dataclass(slots=True)
class Tx:
    """One try of one unit of work.

    `now`: the database's time in microseconds, read when the try began. `repeated`: an earlier try of this very unit may
    have been committed (its COMMIT got no answer); the op must look its own identities up before it writes.
    `host`: this process (`runtime.Runtime`): settings, the token key, caches; never the truth.
    `memo`: survives from try to try of one unit; holds only identities that were made before a COMMIT.
    """

    conn: Connection
    dialect: Dialect
    now: int
    host: Any = None
    shift: int = 0
    repeated: bool = False
    memo: dict[Any, Any] = field(default_factory=dict)
    after_commit: list[Callable[[], None]] = field(default_factory=list)

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the COMMIT was answered. It must not touch the database and must not fail."""
        self.after_commit.append(callback)


class Op(Protocol):
    """A verb: what it changes is in SQL alone, so it may run again. One outcome for each command, in order."""

    def __call__(self, tx: Tx, commands: Sequence[Any], /) -> Sequence[Any]: ...
