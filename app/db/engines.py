"""Engines: what a connection is made for decides how it is prepared. No pool: each thread holds its own connection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from app.db import dialects
from app.db.dialects.base import Dialect
from app.errors import StartupProblem

Use = Literal["write", "read", "ddl"]
DRIVERS = {"sqlite": "pysqlite", "mysql": "pymysql", "mariadb": "pymysql", "postgresql": "psycopg"}


def parse(text: str) -> URL:
    """The URL of a database, with our driver if it names none. Raises: StartupProblem, without the text: it may hold a
    password.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise StartupProblem("TENURE_DATABASE_URL is not the URL of a database", exit_code=2) from None
    backend, _, driver = url.drivername.partition("+")
    ours = DRIVERS.get(backend, driver)  # an unknown backend is refused by `dialects.for_url`
    if driver not in ("", ours):
        raise StartupProblem(
            f"TENURE_DATABASE_URL names the driver {driver!r}; it must be {backend}+{ours}", exit_code=2
        )
    return url if driver == ours else url.set(drivername=f"{backend}+{ours}")


def file_of(url: URL) -> Path | None:
    """The file that the database at `url` is; None for a server. Asks nobody. Raises: StartupProblem as `recognise`."""
    return dialects.for_url(url.get_backend_name()).file_of(url)


def recognise(url: URL, *, sqlite_synchronous: str = "FULL") -> Dialect:
    """The dialect of the server that answers at `url`. Raises: StartupProblem for a URL that cannot be served, the
    driver's error if nobody answers.
    """
    promised = dialects.for_url(url.get_backend_name(), sqlite_synchronous=sqlite_synchronous)
    promised.prepare(url)
    engine = _engine(promised, url, promised.engine_options(url))
    try:
        with engine.connect():
            return dialects.choose(promised, engine)
    finally:
        engine.dispose()


def make(dialect: Dialect, url: URL, use: Use) -> Engine:
    """An engine whose connections are prepared for `use`.

    "read": commits each statement (servers) or cannot write (SQLite). "ddl": waits briefly for locks and is not cut short.
    """
    options = dialect.ddl_options(url) if use == "ddl" else dialect.engine_options(url)
    if use == "read" and not dialect.single_writer:
        options["isolation_level"] = "AUTOCOMMIT"
    engine = _engine(dialect, url, options)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        dialect.on_connect(connection, read_only=use == "read")
        if use == "ddl":
            dialect.on_connect_ddl(connection)

    if dialect.single_writer:

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN" if use == "read" else "BEGIN IMMEDIATE")

    return engine


def _engine(dialect: Dialect, url: URL, options: Mapping[str, Any]) -> Engine:
    # the text of a database error must not carry the values of its statement
    engine = create_engine(url, poolclass=NullPool, hide_parameters=True, **options)

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, _positional: Any, arguments: Mapping[str, Any]) -> Any:
        return dialect.connect(arguments)

    return engine
