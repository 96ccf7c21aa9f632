"""Fault 19: leases, delays, pauses and purges are exact while the database's host changes to summer time and back.

The whole server runs over the change: its wall clock is moved, its host is in Europe/Berlin (db-scheduler#803,
mission_control-jobs#215). A time that went through local time anywhere would be an hour off on one side of one of the two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import NullPool, create_engine, make_url, select, text

from app.clock import micros
from app.db import engines
from app.db.database import Database
from app.primitives.jobs.model import State
from tests.e2e.process import eventually
from tests.primitives.jobs.driving import Host, Jobs, done, failed
from tests.servers import Server, select_engines
from tests.servers.clocks import LIBRARY, MISSING, FakeClock
from tests.servers.migrated import MigratedDatabases
from tests.tools import needs

pytestmark = [
    pytest.mark.engines("mariadb", "mysql", "postgresql"),  # SQLite's time is this process's, which knows no zones
    needs(LIBRARY, MISSING),
]

# the moments at which Berlin changes, in the order in which a clock meets them
GAP = datetime(2037, 3, 29, 1, tzinfo=UTC)
FOLD = datetime(2037, 10, 25, 1, tzinfo=UTC)
CHANGES = pytest.mark.parametrize("change", [GAP, FOLD], ids=["gap", "fold"])

ROUND_TRIP = micros(2)
LONG = 900.0


class Moved:
    """A server of this test's own, whose clock is set."""

    def __init__(self, server: Server) -> None:
        self._clock = server.clock = FakeClock()
        self._server = server
        self._ahead = 0

    def set(self, change: datetime, seconds: float) -> None:
        """Make it so many seconds past the change, from now on."""
        self._ahead = round(change.timestamp() + seconds - time.time())
        self._clock.move(f"{self._ahead:+}")

    def is_read(self, read: Callable[[], int]) -> bool:
        """Whether what reads the clock comes to read the moment that it is, and no other."""
        return eventually(lambda: abs(read() - micros(time.time() + self._ahead)) < ROUND_TRIP, 10, "the right moment")


@pytest.fixture(scope="module")
def moved(engine_name: str) -> Iterator[tuple[Moved, Callable[[], str]]]:
    server = select_engines({**os.environ, "TENURE_TEST_ENGINES": engine_name}).found[engine_name]
    assert isinstance(server, Server)
    databases = MigratedDatabases()
    server.start()
    databases.clean(server)  # now: MySQL takes minutes to change its schema under a clock that is not its host's
    server.stop()
    one = Moved(server)
    server.start()
    yield one, lambda: databases.clean(server)
    databases.close()
    server.close()


@CHANGES
def test_what_is_due_across_the_change_is_due_on_time_and_not_an_hour_off(
    moved: tuple[Moved, Callable[[], str]], open_database: Callable[[str], Database], change: datetime
) -> None:
    server, clean = moved
    server.set(change, -600)
    jobs = Jobs(open_database(clean()), Host())
    jobs.host.set(jobs_retention_seconds=LONG)

    def measured() -> int:
        """As each process does it every other second."""
        jobs.database.measure_clock()
        return jobs.now

    assert server.is_read(measured)

    held, beating, failing, ended, delayed = [jobs.enqueue() for _ in range(4)] + [jobs.enqueue(delay=LONG)]
    grants = {grant.id: grant for grant in jobs.claim(limit=10, lease=LONG)}
    assert grants.keys() == {held.id, beating.id, failing.id, ended.id}
    jobs.settle(failed(grants[failing.id], delay=LONG))
    jobs.settle(done(grants[ended.id]))
    assert jobs.job(held.id).due_at is not None

    server.set(change, 200)
    assert server.is_read(measured)
    assert (jobs.promote(), jobs.abandon(), jobs.purge()) == (0, 0, 0), "nothing is due before its time"
    assert jobs.beat(grants[beating.id], lease=LONG).expires_at - jobs.now <= micros(LONG)

    server.set(change, 400)
    assert server.is_read(measured)
    assert (jobs.promote(), jobs.abandon(), jobs.purge()) == (2, 1, 1), "all is due at its time"
    assert jobs.job(failing.id).state == jobs.job(delayed.id).state == State.AVAILABLE
    assert jobs.job(beating.id).state == State.RUNNING
    jobs.settle(done(grants[beating.id]))


@CHANGES
def test_the_databases_time_is_right_in_any_zone_of_the_session(
    moved: tuple[Moved, Callable[[], str]], change: datetime
) -> None:
    """Should a proxy or an init script set it anew: half past two is before the change and after it."""
    server, clean = moved
    url = clean()
    dialect = engines.recognise(make_url(url))
    zone = "SET TIME ZONE 'Europe/Berlin'" if dialect.name == "postgresql" else "SET time_zone = 'SYSTEM'"
    with create_engine(url, poolclass=NullPool).connect() as connection:
        connection.execute(text(zone))
        for seconds in (-1800, 1800, 3601):
            server.set(change, seconds)
            assert server.is_read(lambda: connection.execute(select(dialect.now())).scalar_one())
