"""The lock under which the schema is changed: a leased row with a fence, so that it works on every server and through
every proxy, and a holder that died is taken over when its lease has run out.

No advisory lock: those are local to one node of a cluster, and lost in a pooling proxy.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog
from sqlalchemy import URL, Engine, Executable, inspect, select, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from app.clock import micros
from app.db import engines
from app.db.dialects.base import Dialect, Fault
from app.db.dialects.sqlite_file import MIGRATING
from app.db.tables import migration_lock as table
from app.errors import StartupProblem

log = structlog.get_logger("tenure.migrations")

LEASE_SECONDS = 30.0
WAIT_SECONDS = 600.0
POLL_SECONDS = 0.3
TRIES = 5


class MigrationLockLost(StartupProblem):
    """Somebody else may be migrating by now: stop before the next statement."""


class MigrationLock:
    """One holder's side. `check` renews and proves that it is still ours; a thread of its own renews in between."""

    def __init__(self, dialect: Dialect, url: URL, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._dialect = dialect
        self._engine: Engine = engines.make(dialect, url, "read")
        self._lease_seconds = lease_seconds
        self._holder = f"{socket.gethostname()[:30]}:{os.getpid()}:".encode(
            "ascii", "replace"
        ).decode() + secrets.token_hex(8)
        self._fence = 0
        self._ended = threading.Event()

    def acquire(self, wait_seconds: float = WAIT_SECONDS) -> None:
        """Wait for the lock. Raises: StartupProblem if it is not free in time."""
        self._make_table()
        deadline = time.monotonic() + wait_seconds
        told = False
        while not self._take():
            if not told:
                log.info("migration_waits", holder=self._current_holder())
                told = True
            if time.monotonic() > deadline:
                raise StartupProblem(
                    f"the schema is being migrated by {self._current_holder()}; it did not end in time"
                )
            time.sleep(POLL_SECONDS * random.uniform(0.5, 1.5))
        threading.Thread(target=self._renew, name="tenure-migration-lock", daemon=True).start()

    def check(self) -> None:
        """Prove that the lock is ours for a while yet; raises MigrationLockLost if it is not."""
        with self._engine.connect() as connection:
            left = connection.execute(
                select(table.c.lease_until - self._dialect.now()).where(
                    table.c.id == 1, table.c.holder == self._holder, table.c.fence == self._fence
                )
            ).scalar_one_or_none()
        if left is not None and left > micros(self._lease_seconds / 2) and not self._ended.is_set():
            return  # a look costs less than a write, and this comes before every statement
        if self._ended.is_set() or not self._changed(self._until(self._lease_seconds)):
            raise MigrationLockLost("the migration lock was taken over; start again")

    def release(self) -> None:
        self._ended.set()
        with suppress(SQLAlchemyError):  # then the lease runs out by itself
            self._changed(self._until(0))
        self._engine.dispose()

    def _renew(self) -> None:
        while not self._ended.wait(self._lease_seconds / 3):
            try:
                if not self._changed(self._until(self._lease_seconds)):
                    log.error("migration_lock_lost")
                    self._ended.set()
            except SQLAlchemyError as error:
                log.warning("migration_lock_not_renewed", error=type(error).__name__)

    def _take(self) -> bool:
        now = self._dialect.now()
        taken = self._changed(
            update(table)
            .where(table.c.id == 1, table.c.lease_until <= now)
            .values(holder=self._holder, fence=table.c.fence + 1, lease_until=now + micros(self._lease_seconds))
        )
        if taken:
            with self._engine.connect() as connection:
                self._fence = connection.execute(select(table.c.fence).where(table.c.id == 1)).scalar_one()
        return taken

    def _until(self, seconds: float) -> Executable:
        return (
            update(table)
            .where(table.c.id == 1, table.c.holder == self._holder, table.c.fence == self._fence)
            .values(lease_until=self._dialect.now() + micros(seconds))
        )

    def _changed(self, statement: Executable) -> bool:
        """Whether the statement found its row. A statement that another one beat (a deadlock, say) is run again."""
        for attempt in range(1, TRIES + 1):
            try:
                with self._engine.connect() as connection:
                    return connection.execute(statement).rowcount == 1
            except DBAPIError as error:
                if attempt == TRIES or self._dialect.classify(error, at_commit=False) is Fault.BUG:
                    raise
                time.sleep(random.uniform(0, 0.1 * attempt))
        raise AssertionError("the loop either returns or raises")

    def _current_holder(self) -> str:
        with self._engine.connect() as connection:
            return str(connection.execute(select(table.c.holder).where(table.c.id == 1)).scalar_one_or_none())

    def _make_table(self) -> None:
        """Make the table and its row. Several may try at once: whoever comes second finds it made."""
        for attempt in range(1, TRIES + 1):
            try:
                with self._engine.connect() as connection:
                    if not inspect(connection).has_table(table.name):
                        table.create(connection)
                    row = {"id": 1, "holder": "", "fence": 0, "lease_until": 0}
                    connection.execute(self._dialect.insert_missing(table, [row]))
                return
            except DBAPIError:
                if attempt == TRIES:
                    raise
                time.sleep(random.uniform(0, 0.1 * attempt))


class _Owned:
    """The process owns the whole database (SQLite): nobody else can migrate it meanwhile."""

    def check(self) -> None:
        return


@contextmanager
def held(dialect: Dialect, url: URL) -> Iterator[MigrationLock | _Owned]:
    """Hold the migration lock of this database."""
    owned = dialect.own(url, MIGRATING)
    if owned is not None:
        try:
            with engines.make(dialect, url, "ddl").begin() as connection:
                table.create(connection, checkfirst=True)
            yield _Owned()
        finally:
            owned.release()
        return
    lock = MigrationLock(dialect, url)
    lock.acquire()
    try:
        yield lock
    finally:
        lock.release()
