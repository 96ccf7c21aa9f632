"""Fixtures of the tests of jobs. Whoever takes one of these runs on every engine.

jobs          its verbs in one line each, and the host that they ran in (`tests/primitives/jobs/driving.py`)
replica       call it for one more process: a `Jobs` with a database and a memory of its own, on the same tables
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.db.database import Database
from tests.primitives.jobs.driving import Host, Jobs


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
