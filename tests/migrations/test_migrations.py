"""Migrations on every engine: they make what the code expects, from any state that a crash can leave, and harm no traffic."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import NullPool, create_engine, make_url, text, update

from app.db import engines, migrate
from app.db.database import Database
from app.db.dialects import mysql, postgresql
from app.db.migration_lock import MigrationLock, MigrationLockLost
from app.db.tables import api_keys, migration_lock
from app.errors import StartupProblem
from tests.migrations.schema import all_metadata, create_all, schema

ROOT = Path(__file__).resolve().parent.parent.parent
SERVERS = ("mariadb", "mysql", "postgresql")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    database.open()
    yield database
    database.shutdown()


def environment(url: str, **more: str) -> dict[str, str]:
    return {**os.environ, "TENURE_DATABASE_URL": url, "PYTHONPATH": str(ROOT), **more}


def start_alembic(url: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
    """What an operator types, from another folder."""
    command = [sys.executable, "-m", "alembic", "-c", str(ROOT / "alembic.ini"), *arguments]
    return subprocess.Popen(
        command, env=environment(url, **more), cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


def execute(url: str, statement: Any) -> Any:
    with create_engine(url, poolclass=NullPool).begin() as connection:
        return connection.execute(statement)


# -- what they make ----------------------------------------------------------------------------------------------------


def test_migrations_make_what_the_tables_say(new_database: Callable[[], str]) -> None:
    """Types, collations, defaults, indexes, options: as the engine itself tells them."""
    migrated, declared = new_database(), new_database()
    migrate.upgrade(migrated)
    create_all(declared)
    assert schema(migrated) == schema(declared)


def test_alembic_itself_sees_no_drift(database_url: str) -> None:
    migrate.upgrade(database_url)
    with create_engine(database_url, poolclass=NullPool).connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migrate.VERSION_TABLE})
        assert compare_metadata(context, all_metadata()) == []


def test_up_down_up_gives_the_same(database_url: str) -> None:
    migrate.upgrade(database_url)
    first = schema(database_url)
    migrate.downgrade(database_url, revision="base")
    assert list(schema(database_url)) == ["tenure_migration_lock"]
    migrate.upgrade(database_url)
    assert schema(database_url) == first


def test_each_revision_can_be_taken_back_by_itself(database_url: str) -> None:
    revisions = [script.revision for script in migrate._scripts().walk_revisions()][::-1]
    before: dict[str, Any] = {}
    for revision in revisions:
        migrate.upgrade(database_url, revision=revision)
        before[revision] = schema(database_url)
    for revision in reversed(revisions[:-1]):
        migrate.downgrade(database_url, revision=revision)
        assert schema(database_url) == before[revision]


def test_a_second_run_changes_nothing(database_url: str) -> None:
    migrate.upgrade(database_url)
    first = schema(database_url)
    migrate.upgrade(database_url)
    assert schema(database_url) == first


def test_two_installations_share_a_database(database_url: str) -> None:
    migrate.upgrade(database_url)
    finish(start_alembic(database_url, "upgrade", "head", TENURE_TABLE_PREFIX="other_"))
    ours, others = schema(database_url), schema(database_url, prefix="other_")
    assert [name.removeprefix("tenure_") for name in ours] == [name.removeprefix("other_") for name in others]


@pytest.mark.engines(*SERVERS)
def test_the_sql_can_be_printed_for_someone_else_to_run(database_url: str) -> None:
    output = finish(start_alembic(database_url, "upgrade", "head", "--sql"))
    assert "CREATE TABLE tenure_jobs" in output
    assert schema(database_url) == {}


# -- where a database stands -------------------------------------------------------------------------------------------


def test_states_of_a_database(database: Database, database_url: str) -> None:
    assert (migrate.state(database), migrate.current(database)) == ("empty", None)
    migrate.upgrade(database_url, revision="202611302200")
    assert (migrate.state(database), migrate.current(database)) == ("behind", "202611302200")
    migrate.upgrade(database_url)
    assert (migrate.state(database), migrate.current(database)) == ("current", migrate.required())


def test_a_newer_schema_is_fine_and_left_alone(database: Database, database_url: str) -> None:
    """codex-lb#1256: a check blind to the direction sent operators the wrong way."""
    migrate.upgrade(database_url)
    execute(database_url, text(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '299912312359'"))
    assert migrate.state(database) == "ahead"
    migrate.upgrade(database_url)
    assert migrate.current(database) == "299912312359"


@pytest.mark.engines(*SERVERS)
def test_a_server_that_does_not_answer_is_told_in_one_line(database_url: str) -> None:
    nowhere = make_url(database_url).set(port=1, password="quite-secret").render_as_string(hide_password=False)
    with pytest.raises(StartupProblem, match=r"the migration of .* stopped") as raised:
        migrate.upgrade(nowhere)
    process = start_alembic(nowhere, "upgrade", "head")
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "Traceback" not in output
    assert "quite-secret" not in f"{raised.value}{output}"


def test_a_revision_that_does_not_exist_is_told_in_one_line(database_url: str) -> None:
    with pytest.raises(StartupProblem, match="was not migrated"):
        migrate.upgrade(database_url, revision="no_such_revision")


@pytest.mark.engines(*SERVERS)
def test_the_probe_is_caught_up_after_the_migration(database: Database, database_url: str) -> None:
    assert database.capabilities["skip_locked"] == "unproven"
    migrate.upgrade(database_url)
    database.probe()
    assert database.capabilities["skip_locked"] == "yes"


# -- crashes and races -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", [1, 2, 3, 8, 9, 24])
def test_a_migration_that_was_killed_converges_when_it_runs_again(
    new_database: Callable[[], str], statement: int
) -> None:
    """romm#4486, alembic#633: on MySQL the second run died of what the first had made."""
    killed, whole = new_database(), new_database()
    command = [sys.executable, "-m", "tests.migrations.cut_short", killed, str(statement)]
    done = subprocess.run(
        command, env=environment(killed), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == -9, done.stderr
    if "sqlite" not in killed and "tenure_migration_lock" in schema(killed):
        execute(killed, update(migration_lock).values(lease_until=0))  # rather than wait for the lease to end
    migrate.upgrade(killed)
    migrate.upgrade(whole)
    assert schema(killed) == schema(whole)


def test_processes_that_migrate_at_once_all_succeed(database: Database, database_url: str) -> None:
    database.shutdown()
    running = [start_alembic(database_url, "upgrade", "head") for _ in range(3)]
    outputs = [finish(process) for process in running]
    database.open()
    assert migrate.state(database) == "current"
    steps = len(list(migrate._scripts().walk_revisions()))
    assert "".join(outputs).count("migrated") == steps, outputs


def test_threads_that_migrate_at_once_all_succeed(database_url: str) -> None:
    failures: list[Exception] = []

    def one() -> None:
        try:
            migrate.upgrade(database_url)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the test tells it
            failures.append(failure)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.fixture
def make_lock(database_url: str) -> Callable[[float], MigrationLock]:
    url = make_url(database_url)
    return lambda lease_seconds: MigrationLock(engines.recognise(url), url, lease_seconds=lease_seconds)


@pytest.mark.engines(*SERVERS)
def test_a_holder_that_died_is_taken_over_and_can_do_nothing_more(make_lock: Callable[[float], MigrationLock]) -> None:
    dead, heir = make_lock(0.5), make_lock(30)
    dead.acquire()
    dead._ended.set()  # it renews no more, as after SIGSTOP
    heir.acquire(wait_seconds=20)
    dead._ended.clear()
    with pytest.raises(MigrationLockLost):
        dead.check()
    heir.check()
    dead.release()
    heir.check()
    heir.release()


@pytest.mark.engines(*SERVERS)
def test_a_live_holder_is_waited_for_beyond_its_lease(make_lock: Callable[[float], MigrationLock]) -> None:
    holder, waiter = make_lock(0.6), make_lock(30)
    holder.acquire()
    with pytest.raises(StartupProblem, match="is being migrated by"):
        waiter.acquire(wait_seconds=1.5)
    holder.check()
    holder.release()
    waiter.acquire(wait_seconds=5)
    waiter.release()


@pytest.mark.engines(*SERVERS)
def test_behind_a_long_transaction_it_gives_up_in_seconds_and_traffic_goes_on(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting ALTER holds up everybody who comes behind it; its default patience is a day."""
    monkeypatch.setattr(mysql, "DDL_LOCK_SECONDS", 1)
    monkeypatch.setattr(postgresql, "DDL_LOCK_SECONDS", 1)
    migrate.upgrade(database_url)
    url = make_url(database_url)
    dialect = engines.recognise(url)
    longest = 0.0
    stop = threading.Event()

    def traffic() -> None:
        nonlocal longest
        with engines.make(dialect, url, "read").connect() as connection:
            while not stop.wait(0.02):
                began = time.monotonic()
                connection.execute(api_keys.select())
                longest = max(longest, time.monotonic() - began)

    with engines.make(dialect, url, "write").connect() as long_one:
        long_one.execute(api_keys.select())
        reader = threading.Thread(target=traffic)
        reader.start()
        began = time.monotonic()
        with pytest.raises(StartupProblem, match="long transaction"):
            migrate.downgrade(database_url, revision="base")
        took = time.monotonic() - began
        stop.set()
        reader.join()
    assert took < 20
    assert 0 < longest < 5
    migrate.upgrade(database_url)
