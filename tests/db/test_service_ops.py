"""The service's own rows: its key, its heartbeats, and the probe for SKIP LOCKED."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import NullPool, create_engine, select, text

from app.db import ops, store
from app.db.database import Database
from app.db.tables import probes

Open = Callable[[str], Database]


def test_processes_that_start_together_agree_on_one_key(migrated_url: str, open_database: Open) -> None:
    database = open_database(migrated_url)
    ready = threading.Barrier(6)
    keys: list[bytes] = []

    def start() -> None:
        ready.wait()
        keys.extend(database.run(ops.ensure_token_key, [None]))
        database.close()

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 6
    assert len(set(keys)) == 1
    assert len(keys[0]) == 32
    assert database.run(ops.ensure_token_key, [None]) == keys[:1]


def test_a_heartbeat_is_a_write_with_the_databases_time(migrated_url: str, open_database: Open) -> None:
    database = open_database(migrated_url)
    (first,) = database.run(ops.beat, ["replica-1"])
    second, _ = database.run(ops.beat, ["replica-1", "replica-2"])
    assert database.read(lambda tx, _: store.select_heartbeats(tx), None) == [
        ("replica-1", second),
        ("replica-2", second),
    ]
    assert second > first


def test_silent_replicas_are_forgotten(migrated_url: str, open_database: Open) -> None:
    database = open_database(migrated_url)
    database.run(ops.beat, ["old"])
    database.clock.shift_micros = 100_000_000
    database.run(ops.beat, ["new"])
    assert database.run(ops.forget_silent, [50_000_000]) == [1]
    assert [name for name, _ in database.read(lambda tx, _: store.select_heartbeats(tx), None)] == ["new"]


@pytest.mark.engines("mariadb", "mysql")
def test_a_server_that_ignores_skip_locked_is_found_out(fresh_migrated_url: str, open_database: Open) -> None:
    """As TiDB does (pingcap/tidb#69720), and as these servers do on tables that InnoDB does not keep."""
    with create_engine(fresh_migrated_url, poolclass=NullPool).connect() as connection:
        connection.execute(text(f"ALTER TABLE {probes.name} ENGINE=MyISAM"))
    database = open_database(fresh_migrated_url)
    assert database.capabilities["skip_locked"] == "no"
    assert "SKIP LOCKED" not in str(database.dialect.lock_free(select(probes)))


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_a_probe_that_fails_means_no_and_does_not_stop_the_start(fresh_migrated_url: str, open_database: Open) -> None:
    with create_engine(fresh_migrated_url, poolclass=NullPool).begin() as connection:
        connection.execute(text(f"ALTER TABLE {probes.name} DROP COLUMN created_at"))
    database = open_database(fresh_migrated_url)
    assert database.capabilities["skip_locked"] == "no"


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_a_probe_leaves_nothing_behind(migrated_url: str, open_database: Open) -> None:
    database = open_database(migrated_url)
    database.probe()
    assert database.read(lambda tx, _: tx.conn.execute(select(probes)).all(), None) == []


def test_the_servers_settings_are_reported(migrated_url: str, open_database: Open) -> None:
    checks = {name: (good, seen) for name, good, seen in open_database(migrated_url).server_checks()}
    assert checks["durable_commit"][0], checks
