"""`tenure outbox guard` as a process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import NullPool, create_engine, make_url
from sqlalchemy.exc import DBAPIError

from tests.e2e.process import ServiceProcess, run_tenure

SERVERS = pytest.mark.engines("mariadb", "mysql", "postgresql")
INTENT = "INSERT INTO tenure_outbox (message_key, type, destination, payload) VALUES ('k', 't', 'd', '1')"


def insert(url: str) -> None:
    """As a producer that forgot its transaction."""
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(INTENT)


@SERVERS
def test_the_guard_is_put_on_told_of_and_taken_off(migrated_url: str) -> None:
    for verb, wanted in [("status", "off"), ("on", "on"), ("status", "on"), ("off", "off"), ("status", "off")]:
        done = run_tenure("outbox", "guard", verb, "--json", database_url=migrated_url)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["guard"] == wanted
        assert (told["refuses"] is not None) == (wanted == "on")
        if wanted == "on":
            with pytest.raises(DBAPIError, match="tenure outbox guard off"):
                insert(migrated_url)
    assert run_tenure("outbox", "guard", "status", database_url=migrated_url).stdout == "guard off\n"
    insert(migrated_url)


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("verb", ["on", "off", "status"])
def test_the_embedded_database_has_none_and_says_so(migrated_url: str, verb: str) -> None:
    with ServiceProcess(migrated_url):  # which owns the file meanwhile
        done = run_tenure("outbox", "guard", verb, database_url=migrated_url)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search("SQLite .* shows no trigger", done.stderr)


@SERVERS
def test_a_database_that_was_not_migrated_is_told_so(database_url: str) -> None:
    done = run_tenure("outbox", "guard", "on", database_url=database_url)
    assert (done.returncode, done.stdout) == (3, "")
    assert "tenure migrate" in done.stderr


@pytest.mark.engines("mysql")
def test_a_server_that_does_not_watch_transactions_is_told_of(migrated_url: str) -> None:
    switch = "UPDATE performance_schema.setup_consumers SET enabled = '{}' WHERE name = 'events_transactions_current'"
    with create_engine(migrated_url, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql(switch.format("NO"))
        try:
            done = run_tenure("outbox", "guard", "on", database_url=migrated_url)
        finally:
            connection.exec_driver_sql(switch.format("YES"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "performance_schema" in done.stderr
    assert "was not put on" in done.stderr


@contextmanager
def account(url: str, *rights: str) -> Iterator[str]:
    """The URL of one more account, which has these rights."""
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    server = make_url(url).get_backend_name()
    made, gone = {
        "mysql": (["CREATE USER 'plain'@'%' IDENTIFIED BY 'plain'"], ["DROP USER 'plain'@'%'"]),
        "postgresql": (["CREATE ROLE plain LOGIN"], ["DROP OWNED BY plain", "DROP ROLE plain"]),
    }[server]
    with engine.connect().execution_options(no_parameters=True) as connection:
        try:
            for statement in (*made, *(f"GRANT {one}" for one in rights)):
                connection.exec_driver_sql(statement)
            yield make_url(url).set(username="plain", password="plain").render_as_string(hide_password=False)
        finally:
            for statement in gone:
                connection.exec_driver_sql(statement)


def of_the_service(url: str) -> str:
    """The rights that the service itself needs, on MariaDB and MySQL."""
    return f"SELECT, INSERT, UPDATE, DELETE ON {make_url(url).database}.* TO 'plain'@'%'"


@pytest.mark.engines("mariadb", "mysql")
def test_an_account_without_the_right_is_told_so(migrated_url: str) -> None:
    with account(migrated_url, of_the_service(migrated_url)) as plain:
        done = run_tenure("outbox", "guard", "on", database_url=plain)
    assert (done.returncode, done.stdout) == (1, "")
    assert "has not the rights" in done.stderr


@pytest.mark.engines("postgresql")
def test_who_does_not_own_the_table_is_told_so(migrated_url: str) -> None:
    rights = (
        "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO plain",
        "CREATE ON SCHEMA public TO plain",
    )
    with account(migrated_url, *rights) as plain:
        done = run_tenure("outbox", "guard", "on", database_url=plain)
    assert (done.returncode, done.stdout) == (1, "")
    assert "has not the rights" in done.stderr


@pytest.mark.engines("mariadb", "mysql")
def test_the_rights_that_the_documentation_names_are_enough(engine_name: str, migrated_url: str) -> None:
    rights = [
        of_the_service(migrated_url),
        f"TRIGGER ON {make_url(migrated_url).database}.tenure_outbox TO 'plain'@'%'",
    ]
    if engine_name == "mysql":
        rights.append("SELECT ON performance_schema.events_transactions_current TO 'plain'@'%'")
    with account(migrated_url, *rights) as plain:
        try:
            done = run_tenure("outbox", "guard", "on", database_url=plain)
            assert done.returncode == 0, done.stderr
            with pytest.raises(DBAPIError, match="tenure outbox guard off"):
                insert(migrated_url)
        finally:
            assert run_tenure("outbox", "guard", "off", database_url=plain).returncode == 0
