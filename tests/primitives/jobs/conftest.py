"""Fixtures of the tests of jobs. Whoever takes one of these runs on every engine.

    database      opened on a migrated database
    jobs          its verbs in one line each, and the host that they ran in (`tests/primitives/jobs/driving.py`)
    replica       call it for one more process: a `Jobs` with a database and a memory of its own, on the same tables
    service       the whole service over HTTP, every answer held against its OpenAPI document (`tests/service.py`)

A test that takes `service` is async and marked `@pytest.mark.anyio`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from app.db.database import Database
from tests.primitives.jobs.driving import Host, Jobs
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
def host() -> Host:
    return Host()


@pytest.fixture
def jobs(database: Database, host: Host) -> Jobs:
    return Jobs(database, host)


@pytest.fixture
def replica(migrated_url: str, open_database: Callable[[str], Database], jobs: Jobs) -> Callable[[], Jobs]:
    """One more process on the same tables. It shares settings and token key, and nothing else."""

    def make() -> Jobs:
        return Jobs(open_database(migrated_url), Host(jobs.host.settings))

    return make


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    async with running(database) as one:
        yield one
