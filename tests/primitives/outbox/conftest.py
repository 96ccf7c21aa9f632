"""Fixtures of the tests of the outbox. Whoever takes one of these runs on every engine.

box       the verbs of one process on a migrated database, with the destination `d` (`tests/primitives/outbox/driving.py`)
replica   call it for one more process: an `Outbox` with a database and a memory of its own, on the same tables
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.db.database import Database
from tests.primitives.outbox.driving import Host, Outbox


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
