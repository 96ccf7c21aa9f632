"""Fixtures of the tests of the cache. Whoever takes one of these runs on every engine.

cache     the verbs of one process on a migrated database (`tests/primitives/cache/driving.py`)
replica   call it for one more process: `Cache` with a database and a memory of its own, on the same tables
service   the whole service over HTTP, every answer held against its OpenAPI document (`tests/service.py`)
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.db.database import Database
from tests.primitives.cache.driving import Cache, host


@pytest.fixture
def cache(database: Database) -> Cache:
    return Cache(database, host())


@pytest.fixture
def replica(migrated_url: str, open_database: Callable[[str], Database], cache: Cache) -> Callable[[], Cache]:
    """One more process on the same tables. It shares settings and token key, and nothing else."""
    return lambda: Cache(open_database(migrated_url), host(cache.host.settings))
