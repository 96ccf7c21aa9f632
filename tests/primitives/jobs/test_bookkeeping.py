"""What is written down for people must never stand in the way of work (Netflix/conductor#576, airflow#66794; scenario 14)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import text

from app.db.database import Database
from app.db.tx import Tx
from app.errors import Refusal
from app.primitives.jobs.tables import job_figures, job_workers
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
