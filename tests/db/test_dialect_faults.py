"""Each error that a real server really gives, and what every dialect makes of it."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import Connection, Table, make_url, text, update
from sqlalchemy.exc import DBAPIError

from app.db import engines
from app.db.dialects.base import Dialect, Fault
from app.errors import Refusal
from tests.db.conftest import ROWS, SERVERS, Open, insert_rows, kill_session, select_all, session_id, set_read_only
from tests.servers import Engine
from tests.servers.proxy import Proxy


@pytest.fixture
def dialect(rows_url: str) -> Dialect:
    return engines.recognise(make_url(rows_url))


def _bump(connection: Connection, key: bytes) -> None:
    connection.execute(update(ROWS).where(ROWS.c.key == key).values(amount=ROWS.c.amount + 1))


@pytest.mark.engines(*SERVERS)
def test_a_deadlock_is_a_retry(dialect: Dialect, two: tuple[Connection, Connection]) -> None:
    one, other = two
    errors: list[DBAPIError] = []
    _bump(one, b"a")
    _bump(other, b"b")

    def cross(connection: Connection, key: bytes) -> None:
        try:
            _bump(connection, key)
        except DBAPIError as error:
            errors.append(error)
            connection.rollback()

    threads = [threading.Thread(target=cross, args=pair) for pair in ((one, b"b"), (other, b"a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [dialect.classify(error, at_commit=False) for error in errors] == [Fault.RETRY]


@pytest.mark.engines(*SERVERS)
def test_a_lock_wait_that_ends_is_a_retry(
    engine_name: str, dialect: Dialect, two: tuple[Connection, Connection]
) -> None:
    one, other = two
    _bump(one, b"a")
    setting = "lock_timeout = '100ms'" if engine_name == "postgresql" else "innodb_lock_wait_timeout = 1"
    other.execute(text(f"SET {setting}"))
    with pytest.raises(DBAPIError) as raised:
        _bump(other, b"a")
    assert dialect.classify(raised.value, at_commit=False) is Fault.RETRY
    assert dialect.classify(raised.value, at_commit=True) is Fault.UNKNOWN


def test_a_second_row_with_the_same_key_is_a_duplicate(dialect: Dialect, rows: Table, rows_url: str) -> None:
    url = make_url(rows_url)
    for row in ({"key": b"a"}, {"key": b"other", "unique_key": b"u"}):
        with engines.make(dialect, url, "write").connect() as connection:
            connection.execute(rows.insert().values(**{"key": b"a", "unique_key": b"u", **row}))
            with pytest.raises(DBAPIError) as raised:
                connection.execute(rows.insert().values(**{"key": b"a", "unique_key": b"u", **row}))
            assert dialect.classify(raised.value, at_commit=False) is Fault.DUPLICATE


@pytest.mark.engines(*SERVERS)
def test_a_killed_connection_is_gone(dialect: Dialect, two: tuple[Connection, Connection]) -> None:
    one, other = two
    kill_session(other, session_id(one))
    with pytest.raises(DBAPIError) as raised:
        _bump(one, b"a")
    assert dialect.classify(raised.value, at_commit=False) is Fault.GONE
    assert dialect.classify(raised.value, at_commit=True) is Fault.UNKNOWN


@pytest.mark.engines(*SERVERS)
def test_a_server_that_is_not_there_is_gone(dialect: Dialect, rows_url: str) -> None:
    dead = make_url(rows_url).set(port=1)
    with pytest.raises(DBAPIError) as raised:
        engines.make(dialect, dead, "write").connect()
    assert dialect.classify(raised.value, at_commit=False) is Fault.GONE


def test_a_table_that_is_not_there_is_a_bug(dialect: Dialect, rows_url: str) -> None:
    with engines.make(dialect, make_url(rows_url), "write").connect() as connection:
        with pytest.raises(DBAPIError) as raised:
            connection.execute(text("SELECT * FROM no_such_table"))
        assert dialect.classify(raised.value, at_commit=False) is Fault.BUG


@pytest.mark.engines(*SERVERS)
def test_a_statement_that_runs_too_long_is_ended_by_the_server(
    engine_name: str, dialect: Dialect, rows_url: str
) -> None:
    dialect.statement_seconds = 1
    # MySQL's SLEEP swallows the interruption, so a real product is counted
    slow = {
        "postgresql": "SELECT pg_sleep(20)",
        "mariadb": "SELECT SLEEP(20)",
        "mysql": f"SELECT COUNT(*) FROM {', '.join(f'information_schema.columns c{n}' for n in range(4))}",
    }[engine_name]
    with engines.make(dialect, make_url(rows_url), "write").connect() as connection:
        with pytest.raises(DBAPIError) as raised:
            connection.execute(text(slow))
        assert dialect.classify(raised.value, at_commit=False) is Fault.RETRY


@pytest.mark.engines(*SERVERS)
def test_a_read_only_server_gives_503_and_serves_again_without_a_restart(
    faulty_server: Engine, plain_url: str, open_database: Open
) -> None:
    """gpustack#6105: a pool kept connections to a demoted primary for days, and every write failed."""
    database = open_database(plain_url)
    database.run(insert_rows, [{"key": b"before"}])
    set_read_only(faulty_server, plain_url, on=True)
    try:
        with pytest.raises(Refusal) as raised:
            database.run(insert_rows, [{"key": b"meanwhile"}])
        assert raised.value.code.name == "database_unavailable"
        assert database.faults[Fault.GONE.value] >= 2
    finally:
        set_read_only(faulty_server, plain_url, on=False)
    database.run(insert_rows, [{"key": b"after"}])
    assert set(database.read(select_all, None)) == {b"before", b"after"}


@pytest.mark.engines(*SERVERS)
def test_a_commit_without_an_answer_is_unknown(dialect: Dialect, rows_url: str, proxy: Proxy) -> None:
    engine = engines.make(dialect, make_url(proxy.url(rows_url)), "write")
    with engine.connect() as connection:
        connection.execute(ROWS.insert().values(key=b"a"))
        proxy.lose_reply_to(b"COMMIT")
        with pytest.raises(DBAPIError) as raised:
            connection.commit()
    assert dialect.classify(raised.value, at_commit=True) is Fault.UNKNOWN
