"""Terminal handlers that record messages, on every engine: each death records its message once, however the job died."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.clock import micros
from app.db.database import Database
from app.ids import id_text
from app.primitives.jobs.model import Settle, State
from app.primitives.jobs.model.terms import Handler
from app.primitives.jobs.ops.control import retry
from app.primitives.jobs.ops.settle import settle
from app.primitives.outbox.ops.owed import record_owed
from app.primitives.outbox.tables import outbox_contents, outbox_messages
from tests.primitives.jobs.driving import CALLER as JOBS_CALLER
from tests.primitives.jobs.driving import Host as JobsHost
from tests.primitives.jobs.driving import Jobs, failed
from tests.primitives.jobs.promising import promise
from tests.primitives.jobs.test_control import control, run
from tests.primitives.outbox.driving import Host, Outbox
from tests.service import Service

HANDLER = Handler(type="charge.failed", destination="support")


@pytest.fixture
def both(database: Database) -> tuple[Jobs, Outbox]:
    """The verbs of jobs and of the outbox in one process."""
    host = Host()
    memory = JobsHost().memory
    memory.record_owed = record_owed
    host.states["jobs"] = memory
    jobs = Jobs(database, JobsHost(host.settings, host.token_key))
    jobs.host.memory = memory
    box = Outbox(database, host)
    database.host = host  # which knows both
    return jobs, box


def by_a_failure_for_good(jobs: Jobs) -> None:
    jobs.settle(failed(jobs.take(), "refused", retry=False, message="no such account"))


def by_spent_attempts(jobs: Jobs) -> None:
    for _ in range(2):
        jobs.settle(failed(jobs.take(), "down", delay=0))


def by_lost_leases(jobs: Jobs) -> None:
    for _ in range(2):
        jobs.take()
        jobs.move(61)
        jobs.abandon()
        jobs.move(7200)
        jobs.promote()


@pytest.mark.parametrize("die", [by_a_failure_for_good, by_spent_attempts, by_lost_leases])
def test_a_death_records_its_message_in_its_own_transaction(
    both: tuple[Jobs, Outbox], die: Callable[[Jobs], Any]
) -> None:
    jobs, box = both
    box.put("support")
    promise(jobs.database, max_attempts=2, handler=HANDLER)
    job = jobs.enqueue(correlation_id="order-1")
    die(jobs)
    assert jobs.job(job.id).state is State.DEAD
    (message,) = box.claim("support", limit=9)
    told = json.loads(message.payload)
    assert told["job"]["id"] == id_text(job.id)
    assert message.flow == ("support", "charge.failed")
    assert (message.correlation_id, message.target_reference) == ("order-1", f"jobs/{id_text(job.id)}")
    (handled,) = [event for event in jobs.events(job.id) if event.kind == "handled"]
    assert json.loads(handled.detail) == {"handler_message_id": id_text(message.id)}


def test_a_death_whose_commit_was_not_answered_records_once(both: tuple[Jobs, Outbox]) -> None:
    jobs, box = both
    promise(jobs.database, handler=HANDLER)
    jobs.enqueue()
    jobs.repeat(settle, Settle((failed(jobs.take(), retry=False),), JOBS_CALLER))
    assert len(box.rows(outbox_messages)) == 1


def test_a_job_that_dies_again_records_again(both: tuple[Jobs, Outbox]) -> None:
    jobs, box = both
    promise(jobs.database, handler=HANDLER)
    job = jobs.enqueue()
    jobs.settle(failed(jobs.take(), retry=False))
    run(jobs, retry, control(jobs, job.id))
    jobs.settle(failed(jobs.take(), retry=False))
    keys = {bytes(row.message_key) for row in box.rows(outbox_contents)}
    assert len(keys) == 2


def test_a_destination_that_was_not_set_refuses_nothing(both: tuple[Jobs, Outbox]) -> None:
    jobs, box = both
    promise(jobs.database, handler=HANDLER)
    jobs.enqueue()
    jobs.settle(failed(jobs.take(), retry=False))
    grant = box.take("support")
    box.move(61)
    box.abandon()
    assert box.state(grant.id).text == "unknown", "what was not set bears no repeat"
    assert grant.expires_at - micros(60) <= box.now


@pytest.mark.anyio
async def test_a_contract_may_name_a_destination(service: Service) -> None:
    await service.put("/v1/outbox/destinations/support", {}, status=201)
    contract = {
        "retry": {"max_attempts": 1},
        "exemptions": [{"rule": "QUEUE001", "reason": "The bank takes a transfer once and never again."}],
        "terminal_handler": {"outbox": {"destination": "support", "type": "charge.failed"}},
    }
    await service.put("/v1/contracts/t/1", contract, status=201)
    job = await service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": {}}, status=201)
    ((mine,),) = [(await service.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w"}, status=200))["jobs"]]
    end = {"token": mine["reservation"]["token"], "category": "refused", "retry": False}
    await service.post(f"/v1/jobs/{job['id']}/fail", end, status=200)
    claim = {"destinations": ["support"], "worker": "w"}
    (message,) = (await service.post("/v1/outbox/claim", claim, status=200))["messages"]
    assert message["payload"]["job"]["id"] == job["id"]
    dead = await service.get(f"/v1/jobs/{job['id']}", status=200)
    assert dead["events"][-1]["handler_message_id"] == message["id"]
