"""The development guard on real servers: what it refuses, what it lets pass, and that it leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from app.db import migrate
from app.db.database import Database
from app.db.dialects.mysql import OUTSIDE
from app.primitives.outbox.ops import guard
from app.primitives.outbox.ops.guard import Guard, Turn
from tests.migrations.schema import all_metadata, schema
from tests.primitives.outbox.driving import Outbox

pytestmark = pytest.mark.engines("mariadb", "mysql", "postgresql")

INTENT = "INSERT INTO tenure_outbox (message_key, type, destination, payload) VALUES ('k', 't', 'd', '1')"
CHANGE = "INSERT INTO orders (id) VALUES (1)"
MANY = 70  # on PostgreSQL every 32nd number of a sequence gives the transaction its own


@contextmanager
def turned_on(database: Database) -> Iterator[Guard]:
    (on,) = database.run(guard.turn, [Turn(on=True)])
    try:
        yield on
    finally:
        database.run(guard.turn, [Turn(on=False)])


@pytest.fixture
def guarded(box: Outbox) -> Iterator[Outbox]:
    with turned_on(box.database) as on:
        assert (on.on, on.blind) == (True, False)
        yield box


@pytest.fixture
def client(migrated_url: str) -> Iterator[Connection]:
    """A producer's connection in autocommit, and a table `orders` of its own."""
    engine = create_engine(migrated_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id BIGINT)")
        yield connection
    with engine.connect() as connection:
        connection.exec_driver_sql("DROP TABLE orders")


def run(client: Connection, *statements: str) -> None:
    for statement in statements:
        client.exec_driver_sql(statement)


def sqlstate(fault: DBAPIError) -> tuple[str, str]:
    """The SQLSTATE, and the text. PyMySQL gives 1644 (ER_SIGNAL_EXCEPTION), which is 45000 of a SIGNAL."""
    state = getattr(fault.orig, "sqlstate", None)
    return state or {1644: "45000"}[fault.orig.args[0]], str(fault.orig)  # type: ignore[union-attr]


def refused(client: Connection, statement: str) -> None:
    with pytest.raises(DBAPIError) as raised:
        client.exec_driver_sql(statement)
    state, text = sqlstate(raised.value)
    assert state == "45000"
    assert "tenure_outbox_guard" in text
    assert "tenure outbox guard off" in text


def test_every_insert_in_autocommit_is_refused(guarded: Outbox, client: Connection) -> None:
    for _ in range(MANY):
        refused(client, INTENT)
    refused(client, f"{INTENT}, ('l', 't', 'd', '1')")
    assert guarded.adopt() == 0


def test_an_insert_in_the_transaction_of_a_change_passes(guarded: Outbox, client: Connection) -> None:
    for _ in range(MANY):
        run(client, "BEGIN", CHANGE, INTENT, "ROLLBACK")
    run(client, "BEGIN", CHANGE, INTENT, "COMMIT")
    assert guarded.adopt() == 1
    assert guarded.take().message_key == "k"


def test_a_row_that_was_locked_is_a_change_enough(guarded: Outbox, client: Connection) -> None:
    run(client, CHANGE, "BEGIN", "SELECT id FROM orders FOR UPDATE", INTENT, "COMMIT")
    assert guarded.adopt() == 1


def test_a_change_in_a_savepoint_is_one(guarded: Outbox, client: Connection) -> None:
    run(client, "BEGIN", "SAVEPOINT a", CHANGE, "RELEASE SAVEPOINT a", INTENT, "COMMIT")
    assert guarded.adopt() == 1


@pytest.mark.engines("mariadb", "mysql")
def test_the_first_statement_of_a_transaction_passes_where_the_server_shows_it(
    guarded: Outbox, client: Connection
) -> None:
    run(client, "BEGIN", INTENT, CHANGE, "COMMIT")
    assert guarded.adopt() == 1
    run(client, "SET autocommit = 0", INTENT.replace("'k'", "'l'"), "COMMIT", "SET autocommit = 1")
    assert guarded.adopt() == 1


@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("before", ["SELECT 1", "SELECT id FROM orders"])
def test_what_has_changed_nothing_before_is_refused_on_postgresql(
    guarded: Outbox, client: Connection, before: str
) -> None:
    run(client, "BEGIN", before)
    refused(client, INTENT)
    run(client, "ROLLBACK")


@pytest.mark.engines("mariadb", "mysql")
def test_a_trigger_that_writes_the_intent_in_autocommit_is_refused_too(guarded: Outbox, client: Connection) -> None:
    """As the documentation says: the server shows no difference."""
    run(client, f"CREATE TRIGGER told AFTER INSERT ON orders FOR EACH ROW {INTENT}")
    refused(client, CHANGE)
    run(client, "BEGIN", CHANGE, "COMMIT")
    assert guarded.adopt() == 1


def test_the_guard_may_be_turned_twice_and_leaves_nothing_behind(box: Outbox, client: Connection) -> None:
    for on in (True, True, False, False):
        (stands,) = box.database.run(guard.turn, [Turn(on)])
        assert stands.on is on
        assert box.database.read(guard.read, None) == stands
    run(client, INTENT)
    assert box.adopt() == 1


@pytest.mark.engines("postgresql")
def test_the_function_goes_with_the_guard(guarded: Outbox, client: Connection) -> None:
    found = "SELECT count(*) FROM pg_proc WHERE proname = 'tenure_outbox_guard'"
    assert client.exec_driver_sql(found).scalar_one() == 1
    guarded.database.run(guard.turn, [Turn(on=False)])
    assert client.exec_driver_sql(found).scalar_one() == 0


@pytest.mark.engines("mysql")
def test_a_server_that_does_not_watch_transactions_gets_no_guard(box: Outbox, client: Connection) -> None:
    switch = "UPDATE performance_schema.setup_consumers SET enabled = '{}' WHERE name = 'events_transactions_current'"
    run(client, switch.format("NO"))
    try:
        (stands,) = box.database.run(guard.turn, [Turn(on=True)])
    finally:
        run(client, switch.format("YES"))
    assert (stands.on, stands.blind) == (False, True)
    run(client, INTENT)
    assert box.adopt() == 1


def test_the_text_fits_the_longest_prefix() -> None:
    assert len(OUTSIDE.format(name="p" * 24 + "outbox_guard")) <= 128


# -- migrations ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(fresh_migrated_url: str, open_database: Callable[[str], Database]) -> Database:
    return open_database(fresh_migrated_url)


def test_migrations_neither_put_it_on_nor_mind_it(own: Database, fresh_migrated_url: str) -> None:
    assert own.read(guard.read, None).on is False
    plain: dict[str, Any] = schema(fresh_migrated_url)
    own.run(guard.turn, [Turn(on=True)])
    assert schema(fresh_migrated_url) == plain
    with create_engine(fresh_migrated_url, poolclass=NullPool).connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migrate.VERSION_TABLE})
        assert compare_metadata(context, all_metadata()) == []
    migrate.upgrade(fresh_migrated_url)
    migrate.downgrade(fresh_migrated_url, revision="base")
    migrate.upgrade(fresh_migrated_url)
    assert own.read(guard.read, None).on is False  # it went with its table
    own.run(guard.turn, [Turn(on=False)])
    assert schema(fresh_migrated_url) == plain
