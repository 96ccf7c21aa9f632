"""The test servers keep their promises: faults are faults, and what was committed is there afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from tests.servers import ENGINE_NAMES, Engine, Server, ServerDied, select_engines
from tests.servers.sqlite import SQLite


def _rows(url: str) -> int:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM things")).scalar_one())


def _write(url: str, *statements: str) -> None:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


@pytest.fixture
def url_with_a_row(database_url: str) -> str:
    _write(database_url, "CREATE TABLE things (id INTEGER PRIMARY KEY)", "INSERT INTO things VALUES (1)")
    return database_url


def test_each_database_is_new_and_empty(new_database: Callable[[], str]) -> None:
    first, second = new_database(), new_database()
    _write(first, "CREATE TABLE things (id INTEGER PRIMARY KEY)")
    _write(second, "CREATE TABLE things (id INTEGER PRIMARY KEY)")
    assert first != second


@pytest.mark.parametrize("fault", ["kill", "stop", "restart"])
def test_what_was_committed_outlives_the_process(faulty_server: Server, url_with_a_row: str, fault: str) -> None:
    port = faulty_server.port
    getattr(faulty_server, fault)()
    faulty_server.start()
    assert faulty_server.port == port
    assert _rows(url_with_a_row) == 1


def test_a_killed_server_refuses_connections(faulty_server: Server, url_with_a_row: str) -> None:
    faulty_server.kill()
    assert not faulty_server.running
    with pytest.raises(ServerDied, match="is not running"):
        _ = faulty_server.pid
    with pytest.raises(DBAPIError):
        _rows(url_with_a_row)


def test_a_paused_server_is_silent_and_answers_once_resumed(faulty_server: Server, url_with_a_row: str) -> None:
    timeout = "read_timeout=1" if url_with_a_row.startswith("mysql") else "connect_timeout=2"
    faulty_server.pause()
    with pytest.raises(DBAPIError):
        _rows(f"{url_with_a_row}?{timeout}")
    faulty_server.resume()
    assert _rows(url_with_a_row) == 1


def test_heal_wakes_a_paused_server(faulty_server: Server, url_with_a_row: str) -> None:
    faulty_server.pause()
    faulty_server.heal()
    assert _rows(url_with_a_row) == 1


def test_disconnect_clients_ends_an_open_transaction(server: Engine, url_with_a_row: str) -> None:
    if isinstance(server, SQLite):
        pytest.skip("a connection to a file cannot be ended from outside")
    connection = create_engine(url_with_a_row, poolclass=NullPool).connect()
    connection.execute(text("INSERT INTO things VALUES (2)"))
    server.disconnect_clients(url_with_a_row)
    with pytest.raises(DBAPIError):
        connection.execute(text("SELECT 1"))
    connection.invalidate()
    connection.close()
    assert _rows(url_with_a_row) == 1


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_the_servers_clock_is_not_in_utc(server: Engine, database_url: str) -> None:
    query = {
        "postgresql": "SELECT EXTRACT(timezone FROM now())",
    }.get(server.name, "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), NOW())")
    with create_engine(database_url, poolclass=NullPool).connect() as connection:
        assert int(connection.execute(text(query)).scalar_one()) in {3600, 7200}


def test_a_required_engine_that_is_missing_refuses_the_session() -> None:
    selection = select_engines(
        {"TENURE_TEST_ENGINES": "sqlite,mysql", "TENURE_MYSQL_ROOT": "/nonexistent", "PATH": "/nonexistent"}
    )
    assert selection.refusal is not None
    assert "mysql: TENURE_MYSQL_ROOT names a folder without usr/sbin/mysqld" in selection.refusal


def test_an_unknown_engine_refuses_the_session() -> None:
    refusal = select_engines({"TENURE_TEST_ENGINES": "sqlite,oracle"}).refusal
    assert refusal == f"TENURE_TEST_ENGINES names oracle; known are {', '.join(ENGINE_NAMES)}"


def test_engines_that_are_left_out_are_named() -> None:
    selection = select_engines({"TENURE_TEST_ENGINES": "sqlite"})
    assert selection.refusal is None
    assert selection.lines() == [
        "engines under test: sqlite",
        "ENGINES NOT TESTED: mariadb, mysql, postgresql (not in TENURE_TEST_ENGINES)",
    ]
