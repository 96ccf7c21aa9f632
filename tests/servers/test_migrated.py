"""Migrated databases are what the migrations made, whatever an earlier test left there."""

from __future__ import annotations

from sqlalchemy import NullPool, create_engine, inspect, text

from tests.servers import Engine
from tests.servers.migrated import MigratedDatabases


def _contents(url: str) -> dict[str, int]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        tables = inspect(connection).get_table_names()
        return {name: int(connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one()) for name in tables}


def test_a_clean_database_has_the_schema_and_only_its_own_rows(
    server: Engine, migrated_url: str, migrated_databases: MigratedDatabases
) -> None:
    first = _contents(migrated_url)
    assert first
    with create_engine(migrated_url, poolclass=NullPool).begin() as connection:
        for table, rows in first.items():
            if rows:
                connection.execute(text(f"DELETE FROM {table}"))
    assert sum(_contents(migrated_url).values()) == 0
    again = migrated_databases.clean(server)
    assert _contents(again) == first


def test_a_fresh_database_is_another_one(migrated_url: str, fresh_migrated_url: str) -> None:
    assert migrated_url != fresh_migrated_url
    assert _contents(migrated_url) == _contents(fresh_migrated_url)
