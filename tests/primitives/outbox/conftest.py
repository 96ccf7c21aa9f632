"""Fixtures of the tests of the outbox. Whoever takes one of these runs on every engine.

    box       the verbs of one process on a migrated database, with the destination `d` (`tests/primitives/outbox/driving.py`)
    replica   call it for one more process: an `Outbox` with a database and a memory of its own, on the same tables
    service   the whole service over HTTP, every answer held against its OpenAPI document (`tests/service.py`)

A test that takes `service` is async and marked `@pytest.mark.anyio`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from app.db.database import Database
from tests.primitives.outbox.driving import Host, Outbox
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
def box(database: Database) -> Outbox:
    made = Outbox(database, Host())
    made.put("d")
    return made


@pytest.fixture
def replica(migrated_url: str, open_database: Callable[[str], Database], box: Outbox) -> Callable[[], Outbox]:
    """One more process on the same tables. It shares settings and token key, and nothing else."""

    def make() -> Outbox:
        return Outbox(open_database(migrated_url), Host(box.host.settings))

    return make


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    async with running(database) as one:
        yield one
