"""What the drivers of several primitives share: to run verbs without HTTP, to read past them, and to lose an answer."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import select

from app.access import ANONYMOUS, Caller
from app.clock import micros
from app.db.database import Database
from app.db.tx import Tx
from app.errors import Refusal
from app.settings import Settings

CALLER = Caller(ANONYMOUS, "request-1")
TOKEN_KEY = secrets.token_bytes(32)


class Host:
    """What an op needs of a process: settings, the token key, and its memory of one primitive. Records whom that wakes."""

    def __init__(self, name: str, here: Callable[..., Any], settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.token_key = TOKEN_KEY
        self.woken: list[dict[bytes, int]] = []
        self.here = here(wake=lambda things: self.woken.append(dict(things)))
        self._name = name

    def state(self, name: str) -> Any:
        assert name == self._name
        return self.here

    def set(self, **settings: Any) -> None:
        """Change settings, as a process with others would have them."""
        self.settings = self.settings.model_copy(update=settings)


class Verbs:
    """The verbs of one process. A primitive's driver adds its own."""

    def __init__(self, database: Database, host: Host) -> None:
        self.database, self.host = database, host
        database.host = host

    @property
    def now(self) -> int:
        return self.database.clock.now()

    def move(self, seconds: float) -> None:
        """Move the database's time as this process sees it."""
        self.database.clock.shift_micros += micros(seconds)

    def run(self, op: Callable[..., Any], *commands: Any) -> list[Any]:
        """One transaction; refusals are values."""
        return list(self.database.run(op, commands))

    def rows(self, table: Any, *where: Any) -> list[Any]:
        """Rows of a table past every verb."""
        found: list[Any] = self.database.read(lambda tx, _: tx.conn.execute(select(table).where(*where)).all(), None)
        return found

    def empty(self, *tables: Any) -> None:
        def delete(tx: Tx, commands: Sequence[None]) -> Sequence[None]:
            for table in tables:
                tx.conn.execute(table.delete())
            return commands

        self.database.run(delete, [None])

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


def good(outcome: Any) -> Any:
    """The outcome, which must not be a refusal."""
    if isinstance(outcome, Refusal):
        raise outcome
    return outcome


def reason(outcome: Any) -> str:
    """Why it was refused: the reason of a lost reservation, else the code."""
    assert isinstance(outcome, Refusal), outcome
    return str(outcome.extra.get("reason", outcome.code.name))


def misjudge(process: Verbs, seconds: float) -> None:
    """Let this process be wrong about the database's clock by so much."""
    clock = process.database.clock
    assert clock._offset is not None
    clock.adopt(0, clock._offset + micros(seconds))
