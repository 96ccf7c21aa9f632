"""What is written down for people must never stand in the way of work (Netflix/conductor#576, airflow#66794; scenario 14)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, text

from app.db.database import Database
from app.db.tx import Tx
from app.errors import Refusal
from app.primitives.jobs.tables import job_figures, job_workers
from tests.e2e.process import eventually
from tests.service import Service

AWAY = "_away"


def _rename(database: Database, old: str, new: str) -> None:
    def run(tx: Tx, _: Sequence[None]) -> Sequence[None]:
        tx.conn.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))
        return [None]

    database.run(run, [None])


@pytest.fixture
def no_bookkeeping(database: Database) -> Iterator[None]:
    """The tables of statistics and of workers are gone for the length of a test."""
    names = [table.name for table in (job_figures, job_workers)]
    for name in names:
        _rename(database, name, name + AWAY)
    yield
    for name in names:
        _rename(database, name + AWAY, name)


async def _life(service: Service) -> str:
    job = await service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": 1}, status=201)
    claimed = await service.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w"}, status=200)
    (grant,) = claimed["jobs"]
    token = grant["reservation"]["token"]
    await service.post(f"/v1/jobs/{job['id']}/heartbeat", {"token": token}, status=200)
    done: dict[str, Any] = await service.post(f"/v1/jobs/{job['id']}/complete", {"token": token}, status=200)
    state: str = done["state"]
    return state


@pytest.mark.anyio
@pytest.mark.usefixtures("no_bookkeeping")
async def test_work_goes_on_while_the_bookkeeping_fails(service: Service) -> None:
    assert await _life(service) == "succeeded"
    with pytest.raises(Refusal):  # the loop counts it, backs off and goes on
        await service.runtime.loops["jobs.flush"].spec.body(service.runtime)
    assert await _life(service) == "succeeded"
    figures, workers = service.runtime.state("jobs").snapshot()
    assert figures
    assert workers, "what could not be written is kept for the next time"


TABLES = [table.name for table in (job_figures, job_workers)]


@contextmanager
def _held(url: str, how: str) -> Iterator[None]:
    """Another connection has all rows of the bookkeeping locked, or the tables."""
    engine = create_engine(url, poolclass=NullPool)
    if how == "rows":
        statements = [f"SELECT * FROM {name} FOR UPDATE" for name in TABLES]
    elif engine.dialect.name == "postgresql":
        statements = [f"LOCK TABLE {', '.join(TABLES)} IN ACCESS EXCLUSIVE MODE"]
    else:
        statements = ["LOCK TABLES " + ", ".join(f"{name} WRITE" for name in TABLES)]
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
        yield


async def _taken(service: Service, lane: str, before: int) -> None:
    """Until a thread works at the lane's next command."""
    found = service.runtime.lane(lane)
    await asyncio.to_thread(eventually, lambda: found.batches > before, what=f"{lane} is taken")


@pytest.mark.anyio
@pytest.mark.engines("mariadb", "mysql", "postgresql")  # SQLite locks no table, and has one writer
@pytest.mark.parametrize("how", ["rows", "tables"])
async def test_work_sweeps_and_probes_go_on_while_the_bookkeeping_is_locked(
    service: Service, migrated_url: str, how: str
) -> None:
    """Nothing of them stands in the queue behind what waits for the lock."""
    loop, lanes = service.runtime.loops["jobs.flush"], ("jobs.flush", "jobs.stats")
    await loop.stop()  # this test is the loop
    assert await _life(service) == "succeeded"
    await loop.spec.body(service.runtime)
    assert await _life(service) == "succeeded"  # there is something to write again
    with _held(migrated_url, how):
        before = {name: service.runtime.lane(name).batches for name in lanes}
        flushing = asyncio.create_task(loop.spec.body(service.runtime))
        await _taken(service, "jobs.flush", before["jobs.flush"])
        looking = asyncio.create_task(service.client.get("/health"))
        for _ in range(3):
            assert await _life(service) == "succeeded"
        for sweep in ("jobs.promote", "jobs.abandon", "jobs.purge"):
            await service.sweep(sweep)
        waiting = asyncio.create_task(
            service.post("/v1/jobs/claim", {"queues": ["later"], "worker": "w", "wait_seconds": 10}, status=200)
        )
        await service.post("/v1/jobs", {"queue": "later", "type": "t", "payload": 1}, status=201)
        assert len((await waiting)["jobs"]) == 1
        assert (await service.get("/readyz", status=200))["status"] in ("pass", "warn")
        assert not flushing.done(), "all that was done while it waited"
    await flushing
    assert (await looking).status_code == 200
    assert await _life(service) == "succeeded"


@pytest.mark.anyio
async def test_bookkeeping_that_has_failed_for_long_is_a_warning_and_takes_no_traffic_away(service: Service) -> None:
    await service.runtime.loops["jobs.flush"].stop()
    ready = await service.get("/readyz", status=200)
    (check,) = [check for check in ready["checks"] if check["name"] == "loop.jobs.flush"]
    assert (ready["status"], check["status"]) == ("warn", "warn")
    assert "has not succeeded lately" in check["output"]
    assert await _life(service) == "succeeded"
