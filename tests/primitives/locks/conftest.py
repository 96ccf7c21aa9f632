"""Fixtures of the tests of the locks. Whoever takes one of these runs on every engine.

locks     the verbs of one process on a migrated database (`tests/primitives/locks/driving.py`)
replica   call it for one more process: `Locks` with a database and a memory of its own, on the same tables
service   the whole service over HTTP, every answer held against its OpenAPI document (`tests/service.py`)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from app.db.database import Database
from tests.primitives.locks.driving import Host, Locks
from tests.service import Service, running


@pytest.fixture
def open_database() -> Iterator[Callable[[str], Database]]:
    """Call it for a `Database`; it is shut down after the test. SQLite is not synced: these tests cut no power."""
    opened: list[Database] = []

    def open_(url: str) -> Database:
        database = Database(url, sqlite_synchronous="NORMAL")
        opened.append(database)
        database.open()
        return database

    yield open_
    for database in opened:
        database.shutdown()


@pytest.fixture
def database(migrated_url: str, open_database: Callable[[str], Database]) -> Database:
    return open_database(migrated_url)


@pytest.fixture
def locks(database: Database) -> Locks:
    return Locks(database, Host())


@pytest.fixture
def replica(migrated_url: str, open_database: Callable[[str], Database], locks: Locks) -> Callable[[], Locks]:
    """One more process on the same tables. It shares settings and token key, and nothing else."""
    return lambda: Locks(open_database(migrated_url), Host(locks.host.settings))


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    async with running(database) as one:
        yield one
