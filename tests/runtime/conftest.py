"""A database with one plain table for the tests of lanes; nothing of the service is in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from sqlalchemy import make_url

from app.db import engines
from app.db.database import Database
from app.runtime.lanes import Crew, Deadlines, Lane, LaneSpec
from tests.db.conftest import ROWS


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    url = make_url(database_url)
    with engines.make(engines.recognise(url), url, "write").begin() as connection:
        ROWS.create(connection)
    opened = Database(database_url, sqlite_synchronous="NORMAL")
    opened.open()
    yield opened
    opened.shutdown()


@pytest.fixture
async def serve(database: Database) -> AsyncIterator[Callable[..., list[Lane]]]:
    """Call it with lane specs for running lanes of one crew; their threads end with the test."""
    crews: list[Crew] = []

    def start(*specs: LaneSpec, capacity: int = 100, deadline_seconds: float = 60, threads: int = 1) -> list[Lane]:
        crew = Crew("test", database, threads)
        lanes = [Lane(spec, capacity, crew, Deadlines(deadline_seconds)) for spec in specs]
        for lane in lanes:
            crew.serve(lane)
        crew.start()
        crews.append(crew)
        return lanes

    yield start
    for crew in crews:
        crew.close()
