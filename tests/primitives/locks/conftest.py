"""Fixtures of the tests of the locks. Whoever takes one of these runs on every engine.

locks     the verbs of one process on a migrated database (`tests/primitives/locks/driving.py`)
replica   call it for one more process: `Locks` with a database and a memory of its own, on the same tables
service   the whole service over HTTP, every answer held against its OpenAPI document (`tests/service.py`)
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.db.database import Database
from tests.primitives.locks.driving import Locks, host


@pytest.fixture
def locks(database: Database) -> Locks:
    return Locks(database, host())


@pytest.fixture
def replica(migrated_url: str, open_database: Callable[[str], Database], locks: Locks) -> Callable[[], Locks]:
    """One more process on the same tables. It shares settings and token key, and nothing else."""
    return lambda: Locks(open_database(migrated_url), host(locks.host.settings))
