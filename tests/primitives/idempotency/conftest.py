"""Fixtures of the tests of idempotency. Whoever takes one of these runs on every engine.

keys      the verbs of one process on a migrated database (`tests/primitives/idempotency/driving.py`)
replica   call it for one more process: `Idempotency` with a database and a memory of its own, on the same tables
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.db.database import Database
from tests.primitives.idempotency.driving import Idempotency, host


@pytest.fixture
def keys(database: Database) -> Idempotency:
    return Idempotency(database, host())


@pytest.fixture
def replica(
    migrated_url: str, open_database: Callable[[str], Database], keys: Idempotency
) -> Callable[[], Idempotency]:
    """One more process on the same tables. It shares settings and token key, and nothing else."""
    return lambda: Idempotency(open_database(migrated_url), host(keys.host.settings))
