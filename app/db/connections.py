"""Connections: each database thread holds its own, one to write and one to read; doubtful ones are thrown away together.

A server that lost one connection has most likely lost them all (a restart, a failover), so a fault begins a new generation,
and every thread replaces what it holds from an older one before its next unit of work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from app.db import engines
from app.db.dialects.base import Dialect
from app.db.engines import Use

RECYCLE_SECONDS = 900


@dataclass(slots=True, eq=False)
class Held:
    """One connection of one thread. `busy_since`: when its unit of work began, on the monotonic clock."""

    connection: Connection
    generation: int
    opened: float
    thread: threading.Thread
    busy_since: float | None = None

    @contextmanager
    def at_work(self) -> Iterator[Connection]:
        self.busy_since = time.monotonic()
        try:
            yield self.connection
        finally:
            self.busy_since = None


class _Mine(threading.local):
    def __init__(self) -> None:
        self.held: dict[Use, Held] = {}


class Connections:
    """All connections of one `Database`."""

    def __init__(self, dialect: Dialect, url: URL) -> None:
        self._engines: dict[Use, Engine] = {use: engines.make(dialect, url, use) for use in ("write", "read")}
        self._mine = _Mine()
        self._all: set[Held] = set()
        self._guard = threading.Lock()
        self.generation = 0

    def engine(self, use: Use) -> Engine:
        return self._engines[use]

    def mine(self, use: Use) -> Held:
        """This thread's connection, opened if need be. Raises: the driver's error if it cannot be."""
        held = self._mine.held.get(use)
        if held is not None:
            young = time.monotonic() - held.opened < RECYCLE_SECONDS
            if (
                held.generation == self.generation
                and young
                and not held.connection.closed
                and not held.connection.invalidated
            ):
                return held
            self._drop(use)
        generation = self.generation  # read first: a fault while we connect makes this one doubtful too
        connection = self._engines[use].connect()
        held = Held(connection, generation, time.monotonic(), threading.current_thread())
        self._mine.held[use] = held
        with self._guard:
            orphans = [one for one in self._all if not one.thread.is_alive()]
            self._all.difference_update(orphans)
            self._all.add(held)
        for orphan in orphans:
            _close(orphan.connection)
        return held

    def doubt(self, use: Use) -> None:
        """Throw this thread's connections away, and have every other thread do so, unless one of them was faster.

        Where none could be opened, the others' are left alone: a server that is full takes no new one and serves the old.
        """
        held = self._mine.held.get(use)
        with self._guard:
            if held is not None and held.generation == self.generation:
                self.generation += 1
        for one in list(self._mine.held):
            self._drop(one)

    def roll_back(self) -> None:
        """End whatever this thread has open; a connection that cannot do even that is thrown away. Never raises."""
        for use, held in list(self._mine.held.items()):
            transaction = held.connection.get_transaction()
            if transaction is None:
                continue
            try:
                transaction.rollback()
            except Exception:  # noqa: BLE001 - whatever a broken driver raises must not mask the first error
                self._drop(use)

    def _drop(self, use: Use) -> None:
        held = self._mine.held.pop(use)
        with self._guard:
            self._all.discard(held)
        with suppress(SQLAlchemyError):
            held.connection.invalidate()
        _close(held.connection)

    def close_mine(self) -> None:
        """Close this thread's connections in good order."""
        for held in self._mine.held.values():
            _close(held.connection)
            with self._guard:
                self._all.discard(held)
        self._mine.held.clear()

    def close_all(self) -> None:
        """Close every thread's connections. The threads must have ended their work."""
        self.close_mine()
        with self._guard:
            left, self._all = self._all, set()
            self.generation += 1
        for held in left:
            _close(held.connection)

    def busy_longer_than(self, seconds: float) -> list[Held]:
        with self._guard:
            everyone = list(self._all)
        limit = time.monotonic() - seconds
        return [held for held in everyone if (since := held.busy_since) is not None and since < limit]


def _close(connection: Connection) -> None:
    with suppress(SQLAlchemyError, OSError):
        connection.close()
