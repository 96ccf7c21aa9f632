"""Fixtures of the tests of the documentation.

box       the verbs of the outbox on a migrated database, with the destination of the page
producer  the URL of an account with the rights that the page gives to a producer, and with a table `orders` of its own
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL

from app.db.database import Database
from tests.docs.shop import shop
from tests.primitives.outbox.driving import Host, Outbox


@pytest.fixture
def box(migrated_url: str) -> Iterator[Outbox]:
    database = Database(migrated_url, sqlite_synchronous="NORMAL")
    database.open()
    made = Outbox(database, Host())
    made.put("marketplace")
    yield made
    database.shutdown()


@pytest.fixture
def producer(migrated_url: str, engine_name: str) -> Iterator[URL]:
    with shop(migrated_url, engine_name) as url:
        yield url
