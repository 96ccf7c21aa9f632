"""A table of every kind of column, an opened `Database`, and what differs between servers when one breaks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Index, MetaData, Table, make_url, select, text

from app.db import engines
from app.db.database import Database
from app.db.metadata import TABLE_OPTIONS, Count, Key, Moment, Name, Opaque
from app.db.tx import Tx
from tests.servers import Engine
from tests.servers.proxy import Proxy

SERVERS = ("mariadb", "mysql", "postgresql")

Open = Callable[[str], Database]

ROWS = Table(
    "contract_rows",
    MetaData(),
    Column("key", Key, primary_key=True),
    Column("unique_key", Key),
    Column("name", Name(64)),
    Column("body", Opaque),
    Column("amount", Count),
    Column("at", Moment),
    Index("contract_rows_unique", "unique_key", unique=True),
    **TABLE_OPTIONS,
)


def add_once(tx: Tx, commands: Sequence[bytes]) -> Sequence[str]:
    """An op as the service writes them: it looks its identity up, so it may run again after an unknown COMMIT."""
    outcomes = []
    for key in commands:
        if tx.conn.execute(select(ROWS.c.key).where(ROWS.c.key == key)).first() is None:
            tx.conn.execute(ROWS.insert().values(key=key, amount=1))
            outcomes.append("new")
        else:
            outcomes.append("there")
    return outcomes


class Tries:
    """Wraps an op: calls `before[n]` at the start of the n-th try, and counts tries."""

    def __init__(self, op: Any, *before: Callable[[Tx], object]) -> None:
        self.op, self.before, self.seen = op, before, list[Tx]()

    def __call__(self, tx: Tx, commands: Sequence[Any]) -> Sequence[Any]:
        self.seen.append(tx)
        if len(self.seen) <= len(self.before):
            self.before[len(self.seen) - 1](tx)
        outcomes: Sequence[Any] = self.op(tx, commands)
        return outcomes


@pytest.fixture
def rows() -> Table:
    return ROWS


@pytest.fixture
def rows_url(database_url: str) -> str:
    """A database that holds the table `rows`, and nothing of the service."""
    url = make_url(database_url)
    with engines.make(engines.recognise(url), url, "write").begin() as connection:
        ROWS.create(connection)
    return database_url


@pytest.fixture
def open_database() -> Iterator[Callable[[str], Database]]:
    """Call it for a `Database`; it is shut down after the test."""
    opened: list[Database] = []

    def open_(url: str) -> Database:
        database = Database(url)
        opened.append(database)
        database.open()
        return database

    yield open_
    for database in opened:
        database.shutdown()


@pytest.fixture
def database(rows_url: str, open_database: Callable[[str], Database]) -> Database:
    return open_database(rows_url)


@pytest.fixture
def plain_url(rows_url: str, server: Engine) -> str:
    """The same database by an account that may not write to a read-only server; administrators may."""
    url = make_url(rows_url)
    if server.name in {"postgresql", "sqlite"}:
        return rows_url
    name = f"plain_{url.database}"
    server.execute(f"CREATE USER '{name}'@'127.0.0.1' IDENTIFIED BY 'plain'")
    server.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON {url.database}.* TO '{name}'@'127.0.0.1'")
    return url.set(username=name, password="plain").render_as_string(hide_password=False)


def set_read_only(server: Engine, url: str, *, on: bool) -> None:
    """Make a server refuse writes, as one does that lost its role as primary."""
    if server.name == "postgresql":
        name = make_url(url).database
        with server.connect() as connection:
            # sessions keep what they began with
            connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {"on" if on else "off"}')
        if on:
            server.disconnect_clients(url)
    else:
        server.execute(f"SET GLOBAL read_only = {int(on)}")


def session_id(connection: Connection) -> int:
    """The number by which the server knows this connection."""
    query = "SELECT pg_backend_pid()" if connection.dialect.name == "postgresql" else "SELECT CONNECTION_ID()"
    return int(connection.execute(text(query)).scalar_one())


def kill_session(connection: Connection, number: int) -> None:
    """End another connection from the server's side, and return when it is gone."""
    if connection.dialect.name == "postgresql":
        assert connection.execute(text(f"SELECT pg_terminate_backend({number}, 5000)")).scalar_one()
    else:
        connection.execute(text(f"KILL {number}"))


def select_all(tx: Tx, _: None) -> dict[bytes, int]:
    return {
        bytes(key): amount
        for key, amount in tx.conn.execute(ROWS.select().with_only_columns(ROWS.c.key, ROWS.c.amount))
    }


def insert_rows(tx: Tx, commands: Sequence[dict[str, Any]]) -> Sequence[None]:
    tx.conn.execute(ROWS.insert(), list(commands))
    return [None] * len(commands)


@pytest.fixture
def side(rows_url: str) -> Iterator[Connection]:
    """A connection past the service, in autocommit."""
    url = make_url(rows_url)
    with engines.make(engines.recognise(url), url, "read").connect() as connection:
        yield connection


@pytest.fixture
def proxied(rows_url: str, proxy: Proxy, open_database: Open) -> Database:
    """A database behind the proxy, its writing connection open."""
    database = open_database(proxy.url(rows_url))
    database.run(add_once, [b"warm"])
    return database


@pytest.fixture
def two(rows_url: str) -> Iterator[tuple[Connection, Connection]]:
    """Two connections, each in a transaction, and rows a and b."""
    url = make_url(rows_url)
    engine = engines.make(engines.recognise(url), url, "write")
    with engine.begin() as connection:
        connection.execute(ROWS.insert(), [{"key": b"a", "amount": 0}, {"key": b"b", "amount": 0}])
    with engine.connect() as one, engine.connect() as other:
        for connection in (one, other):
            connection.begin()
        yield one, other
