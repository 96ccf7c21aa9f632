"""Somebody else's open transaction is seen, with its age; where the account may not see it, that is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, NullPool, create_engine, make_url, text

from app.db.database import Database
from app.db.dialects.base import OpenTransactions
from app.db.upkeep import read_clearing
from tests.db.conftest import ROWS, SERVERS, Open, select_all
from tests.e2e.process import eventually
from tests.servers import Engine

pytestmark = pytest.mark.engines(*SERVERS)


@pytest.fixture
def stranger(rows_url: str) -> Iterator[Connection]:
    """Somebody who keeps a snapshot of the database open, as a dump does."""
    engine = create_engine(rows_url, poolclass=NullPool, isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        connection.execute(text("SELECT * FROM contract_rows")).all()
        yield connection


EVERY = 0.25  # InnoDB renews what it shows only when nobody has looked for a tenth of a second


def seen(database: Database) -> OpenTransactions:
    found = database.read(read_clearing, None).transactions
    assert found is not None
    return found


def test_an_open_snapshot_is_seen_with_its_age_and_gone_when_it_ends(database: Database, stranger: Connection) -> None:
    """Fault 8. The server's host is in another time zone than any session, and the age is not hours."""

    def older_than(age: float) -> Callable[[], float | None]:
        return lambda: (now := seen(database).oldest_seconds) is not None and now > age and now

    first = eventually(older_than(0), what="its age is shown", every=EVERY)
    assert first is not None
    assert first < 60
    second = eventually(older_than(first), what="it grows", every=EVERY)
    assert second is not None
    stranger.rollback()
    assert eventually(lambda: seen(database).oldest_seconds == 0, what="none is open", every=EVERY)


def test_the_services_own_reads_are_not_taken_for_somebodys_transaction(database: Database) -> None:
    database.read(select_all, None)
    assert seen(database) == OpenTransactions(0)


@pytest.fixture
def limited_url(plain_url: str, server: Engine) -> Iterator[str]:
    """The same database by an account that may use its tables and see nothing of other accounts."""
    url = make_url(plain_url)
    if server.name != "postgresql":
        yield plain_url
        return
    name = f"plain_{url.database}"
    with create_engine(plain_url, poolclass=NullPool).begin() as connection:
        connection.execute(text(f"CREATE ROLE {name} LOGIN"))
        connection.execute(text(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}"))
    yield url.set(username=name).render_as_string(hide_password=False)
    with create_engine(plain_url, poolclass=NullPool).begin() as connection:
        connection.execute(text(f"DROP OWNED BY {name}"))
        connection.execute(text(f"DROP ROLE {name}"))


def test_an_account_that_may_not_see_others_says_so_and_names_the_right(
    limited_url: str, stranger: Connection, open_database: Open, engine_name: str
) -> None:
    database = open_database(limited_url)
    found = seen(database)
    assert found.oldest_seconds is None
    assert ("pg_read_all_stats" if engine_name == "postgresql" else "PROCESS") in str(found.hidden)
    assert database.faults == {}, "nothing is retried for it"


@pytest.mark.engines("postgresql")
def test_a_transaction_that_was_prepared_and_forgotten_is_seen_after_its_session_has_ended(
    rows_url: str, database: Database, side: Connection
) -> None:
    with create_engine(rows_url, poolclass=NullPool).connect() as connection:
        connection.execute(ROWS.insert().values(key=b"a"))
        connection.execute(text("PREPARE TRANSACTION 'forgotten'"))
    try:
        assert eventually(lambda: (seen(database).oldest_seconds or 0) > 0, what="it is shown")
    finally:
        side.execute(text("ROLLBACK PREPARED 'forgotten'"))
    assert seen(database) == OpenTransactions(0)
