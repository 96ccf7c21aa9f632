"""Databases with the service's schema, made by its own migrations: one for each engine and session, or a new one.

Knows of the service only `app.db.migrate.upgrade`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine as SQLAlchemyEngine
from sqlalchemy import MetaData, NullPool, Table, create_engine, event, insert, make_url, select

from tests.servers.base import Engine
from tests.servers.postgresql import PostgreSQL
from tests.servers.sqlite import SQLite

LOCK_WAIT_SECONDS = 10


@dataclass(frozen=True)
class Migrated:
    """A migrated database that the session keeps, and what it held right after the migrations."""

    url: str
    template_url: str  # the same schema in a database that is never handed out; where copying is not known, `url`
    engine: SQLAlchemyEngine
    seeds: tuple[tuple[Table, list[dict[str, Any]]], ...]  # every table, parents first, with the migrations' own rows


class MigratedDatabases:
    """Migrates once for each engine and hands out clean databases."""

    def __init__(self) -> None:
        self._kept: dict[str, Migrated] = {}

    def clean(self, engine: Engine) -> str:
        """Return the URL of a database as the migrations leave it. Valid until the next call for this engine."""
        kept = self._kept_for(engine)
        if isinstance(engine, SQLite):
            return engine.copy_database(kept.template_url)
        engine.disconnect_clients(kept.url)
        with kept.engine.begin() as connection:
            for table, _ in reversed(kept.seeds):
                connection.execute(table.delete())
            for table, rows in kept.seeds:
                if rows:
                    connection.execute(insert(table), rows)
        return kept.url

    def fresh(self, engine: Engine) -> str:
        """Return the URL of a new database that nobody has used. Slower than `clean`; the caller drops it."""
        if isinstance(engine, SQLite | PostgreSQL):
            return engine.copy_database(self._kept_for(engine).template_url)
        url = engine.create_database()
        self.upgrade(url)
        return url

    def upgrade(self, url: str) -> None:
        """Run the service's migrations."""
        from app.db.migrate import upgrade

        upgrade(url)

    def close(self) -> None:
        for kept in self._kept.values():
            kept.engine.dispose()

    def _kept_for(self, engine: Engine) -> Migrated:
        if engine.name not in self._kept:
            template_url = engine.create_database()
            self.upgrade(template_url)
            url = engine.copy_database(template_url) if isinstance(engine, PostgreSQL) else template_url
            self._kept[engine.name] = _remember(url, template_url)
        return self._kept[engine.name]


def _remember(url: str, template_url: str) -> Migrated:
    backend = make_url(url).get_backend_name()
    # PyMySQL would read the machine's certificates for each connection, which takes longer than most tests
    engine = create_engine(url, poolclass=NullPool, connect_args={"ssl_disabled": True} if backend == "mysql" else {})
    if backend != "sqlite":

        @event.listens_for(engine, "connect")
        def _bound_lock_waits(connection: Any, _record: Any) -> None:
            # A lock that an earlier test left must fail the next one, not hang it.
            setting = (
                f"lock_timeout = '{LOCK_WAIT_SECONDS}s'"
                if backend == "postgresql"
                else (f"innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}")
            )
            with connection.cursor() as cursor:
                cursor.execute(f"SET SESSION {setting}")
            connection.commit()

    metadata = MetaData()
    with engine.connect() as connection:
        metadata.reflect(connection)
        seeds = tuple(
            (table, [dict(row) for row in connection.execute(select(table)).mappings()])
            for table in metadata.sorted_tables
        )
    return Migrated(url, template_url, engine, seeds)
