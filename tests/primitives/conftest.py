"""Fixtures that the tests of every primitive share. Whoever takes one of these runs on every engine.

    open_database   call it for a `Database` on a URL; it is shut down after the test
    database        one that is opened on a migrated database
    service         the whole service over HTTP, every answer held against its OpenAPI document (`tests/service.py`)

A test that takes `service` is async and marked `@pytest.mark.anyio`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from app.db.database import Database
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
async def service(database: Database) -> AsyncIterator[Service]:
    async with running(database) as one:
        yield one
