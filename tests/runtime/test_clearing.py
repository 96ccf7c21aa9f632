"""The alarm for what keeps the database from clearing finished rows away: `/health` and `/metrics` while somebody does."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection, NullPool, create_engine, make_url, text

from app.db.database import Database
from app.db.tables import installation
from app.db.tx import Tx
from app.errors import OVERLOADED, Refusal
from app.runtime.clearing import JOURNAL, SHARED_FOR, TRANSACTION
from tests.db.conftest import SERVERS
from tests.e2e.process import eventually
from tests.service import Service, running

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024


@pytest.fixture
async def service(migrated_url: str) -> AsyncIterator[Service]:
    database = Database(migrated_url, sqlite_synchronous="NORMAL")
    database.open()
    async with running(database) as one:
        yield one
    database.shutdown()


@pytest.fixture
def dump(migrated_url: str) -> Iterator[Connection]:
    """Somebody reads the database in one snapshot and does not come to an end."""
    engine = create_engine(migrated_url, poolclass=NullPool, isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        connection.execute(installation.select()).all()
        yield connection


async def looked(service: Service) -> dict[str, Any]:
    """The checks of `/health` by name, from a fresh look."""
    service.runtime.state("clearing")._asked -= SHARED_FOR
    health = await service.get("/health", status=200)
    return {check["name"]: check for check in health["checks"]}


async def gauge(service: Service, name: str) -> float | None:
    families = text_string_to_metric_families((await service.client.get("/metrics")).text)
    return next((sample.value for family in families for sample in family.samples if sample.name == name), None)


async def until(service: Service, check: str, found: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Look until the check is so, and give it. InnoDB renews what it shows only after a tenth of a second without a look."""

    async def look() -> dict[str, Any] | None:
        seen: dict[str, Any] = (await looked(service))[check]
        return seen if found(seen) else None

    def wait() -> dict[str, Any] | None:
        return eventually(lambda: anyio.from_thread.run(look), what=check, every=0.25)

    seen = await anyio.to_thread.run_sync(wait)
    assert seen is not None
    return seen


def set_(service: Service, **settings: Any) -> None:
    service.runtime.settings = service.runtime.settings.model_copy(update=settings)


@pytest.mark.engines(*SERVERS)
async def test_health_warns_of_a_snapshot_that_somebody_keeps_open_until_it_ends(
    service: Service, dump: Connection
) -> None:
    """Fault 8: the claim index fills with finished work meanwhile, in every table and for everybody."""
    check = await until(service, TRANSACTION, lambda check: check["value"] >= 1)
    assert (check["status"], check["unit"], check["output"]) == ("pass", "seconds", None)
    assert check["value"] < 60

    set_(service, health_transaction_seconds=0.5)
    check = (await looked(service))[TRANSACTION]
    assert (check["status"], check["value"] >= 1) == ("warn", True)
    assert "more than 0.5" in check["output"]
    health = await service.get("/health", status=200)
    assert (health["status"], health["output"]) == ("warn", check["output"])
    assert (await service.get("/readyz", status=200))["status"] == "pass", "it may be given traffic"
    age = await gauge(service, "tenure_database_oldest_transaction_seconds")
    assert age is not None
    assert age >= 1

    dump.rollback()
    check = await until(service, TRANSACTION, lambda check: check["value"] == 0)
    assert (check["status"], check["output"]) == ("pass", None)
    assert await gauge(service, "tenure_database_oldest_transaction_seconds") == 0


@pytest.mark.engines("mariadb")
async def test_the_database_is_asked_once_for_all_who_look_and_never_by_work(service: Service) -> None:
    lane = service.runtime.lane("service.clearing")
    job = await service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": 1}, status=201)
    await service.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w"}, status=200)
    await service.get(f"/v1/jobs/{job['id']}", status=200)
    await service.get("/readyz", status=200)
    assert lane.served == 0
    service.runtime.state("clearing")._asked = 2**62  # nothing becomes old while a slow machine does this
    async with anyio.create_task_group() as together:
        for _ in range(10):
            together.start_soon(service.get, "/health")
            together.start_soon(service.client.get, "/metrics")
    assert lane.served == 1


@pytest.mark.engines("mariadb")
async def test_a_look_that_fails_is_unknown_and_no_fault_of_the_service(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def told() -> tuple[str, Any, str]:
        check = (await looked(service))[TRANSACTION]
        return check["status"], check["value"], check["output"]

    lane = service.runtime.lane("service.clearing")
    monkeypatch.setattr(lane, "capacity", 0)
    assert await told() == ("pass", None, f"unknown: {OVERLOADED.name}")
    monkeypatch.undo()

    def broken(_connection: Connection) -> None:
        raise Refusal(OVERLOADED, "Too much.")

    monkeypatch.setattr(service.runtime.database.dialect, "open_transactions", broken)
    assert await told() == ("pass", None, f"unknown: {OVERLOADED.name}")
    assert await gauge(service, "tenure_database_oldest_transaction_seconds") is None


def grow(database: Database, mib: int) -> None:
    """Write so much, a page at a time to the journal and none of it twice."""

    def write(tx: Tx, commands: Sequence[None]) -> Sequence[None]:
        tx.conn.execute(text("CREATE TABLE IF NOT EXISTS filler (body BLOB)"))
        tx.conn.execute(text(f"INSERT INTO filler VALUES (zeroblob({MIB}))"))
        return commands

    for _ in range(mib):
        database.run(write, [None])
    database.close()


@pytest.mark.engines("sqlite")
async def test_health_warns_of_a_journal_that_a_reader_keeps_from_being_folded_until_that_ends(
    service: Service, migrated_url: str
) -> None:
    """Fault 28. Nobody else can hold a transaction of the embedded database but a reader past the service, such as a copy."""
    set_(service, health_journal_bytes=16 * MIB)
    await anyio.to_thread.run_sync(grow, service.runtime.database, 40)
    check = (await looked(service))[JOURNAL]
    assert check["status"] == "pass", "however much is written, it is folded as it goes"

    path = make_url(migrated_url).database
    assert path is not None
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM filler LIMIT 1").fetchall()
        await anyio.to_thread.run_sync(grow, service.runtime.database, 40)
        check = (await looked(service))[JOURNAL]
        assert (check["status"], check["unit"], check["value"] > 40 * MIB) == ("warn", "bytes", True)
        assert "a reader holds it" in check["output"]
        assert await gauge(service, "tenure_database_journal_bytes") == check["value"]
    await anyio.to_thread.run_sync(grow, service.runtime.database, 2)
    check = (await looked(service))[JOURNAL]
    assert (check["status"], check["value"] < 16 * MIB) == ("pass", True)


@pytest.mark.engines("sqlite")
async def test_the_embedded_database_has_no_transactions_of_others_and_servers_no_journal(service: Service) -> None:
    assert TRANSACTION not in await looked(service)
    assert await gauge(service, "tenure_database_oldest_transaction_seconds") is None
