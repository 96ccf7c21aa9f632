"""Engines: what a connection is made for decides how it is prepared. No pool: each thread holds its own connection."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event

from app.db import dialects
from app.db.dialects.base import Dialect

Use = Literal["write", "read", "ddl"]


def recognise(url: URL, *, sqlite_synchronous: str = "FULL") -> Dialect:
    """The dialect of the server that answers at `url`. Raises: StartupProblem for a URL that cannot be served, the
    driver's error if nobody answers.
    """
    promised = dialects.for_url(url.get_backend_name(), sqlite_synchronous=sqlite_synchronous)
    promised.prepare(url)
    engine = create_engine(url, poolclass=NullPool, hide_parameters=True, **promised.engine_options(url))
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
    # the text of a database error must not carry the values of its statement
    engine = create_engine(url, poolclass=NullPool, hide_parameters=True, **options)

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
