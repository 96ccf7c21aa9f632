"""Queues, on every engine: set, paused, resumed, and what a pause means for claims that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from app.errors import Refusal
from app.primitives.jobs.model import Caller
from app.primitives.jobs.ops import queues
from app.primitives.jobs.tables import queues as queues_table
from tests.primitives.jobs.driving import Jobs, done, new_job, principal
from tests.service import Service


def put(jobs: Jobs, name: str, **fields: Any) -> Any:
    (outcome,) = jobs.database.run(queues.put, [queues.Put(name, jobs.caller, **fields)])
    return outcome


def pause(jobs: Jobs, name: str, reason: str = "because", *, paused: bool = True) -> Any:
    (outcome,) = jobs.database.run(queues.pause, [queues.Pause(name, jobs.caller, reason, paused)])
    return outcome


def get(jobs: Jobs, name: str) -> Any:
    return jobs.database.read(queues.get, queues.Get(name, jobs.caller.principal))


# -- the verbs -------------------------------------------------------------------------------------------------------------


def test_a_queue_comes_to_be_with_its_first_job(jobs: Jobs) -> None:
    assert get(jobs, "q").code.name == "not_found"
    jobs.enqueue("q")
    jobs.enqueue("q", "other", delay=60)
    view = get(jobs, "q")
    assert (view.paused_at, view.max_depth, view.retention_seconds, view.description) == (None, None, None, "")
    assert view.counts == {"available": 1, "scheduled": 1}


def test_put_makes_a_queue_and_replaces_everything_that_can_be_set(jobs: Jobs) -> None:
    made = put(jobs, "q", max_depth=5, retention_seconds=60, description="Invoices")
    assert (made.max_depth, made.retention_seconds, made.description) == (5, 60, "Invoices")
    again = put(jobs, "q", max_depth=6)
    assert (again.max_depth, again.retention_seconds, again.description) == (6, None, "")
    assert again.created_at == made.created_at


def test_this_process_knows_a_new_limit_at_once(jobs: Jobs) -> None:
    jobs.enqueue("q")
    put(jobs, "q", max_depth=1)
    (refused,) = jobs.enqueue_all(new_job("q"))
    assert isinstance(refused, Refusal)
    assert refused.code.name == "queue_full"
    put(jobs, "q")
    jobs.enqueue("q")


def test_this_process_knows_a_new_retention_at_once(jobs: Jobs) -> None:
    jobs.enqueue("q")
    put(jobs, "q", retention_seconds=7)
    grant = jobs.take("q")
    jobs.settle(done(grant))
    job = jobs.job(grant.id)
    assert (job.due_at or 0) - (job.ended_at or 0) == 7_000_000


def test_putting_a_queue_leaves_its_pause_alone(jobs: Jobs) -> None:
    jobs.enqueue("q")
    pause(jobs, "q", "down")
    put(jobs, "q", max_depth=1)
    assert get(jobs, "q").paused_reason == "down"


def test_nothing_is_claimed_from_a_paused_queue_by_any_replica(jobs: Jobs, replica: Callable[[], Jobs]) -> None:
    jobs.enqueue("q")
    jobs.enqueue("other")
    other = replica()
    assert not pause(jobs, "q").replayed
    assert jobs.claim("q") == ()
    assert other.claim("q") == ()
    assert len(other.claim("other")) == 1
    pause(jobs, "q", paused=False)
    assert len(other.claim("q")) == 1


def test_pausing_twice_keeps_the_first_moment_and_reason(jobs: Jobs) -> None:
    jobs.enqueue("q")
    first = pause(jobs, "q", "the first")
    jobs.move(60)
    again = pause(jobs, "q", "the second")
    assert again.replayed
    assert (again.queue.paused_at, again.queue.paused_reason) == (first.queue.paused_at, "the first")


def test_resuming_twice_is_a_repeat(jobs: Jobs) -> None:
    jobs.enqueue("q")
    pause(jobs, "q")
    resumed = pause(jobs, "q", paused=False)
    assert (resumed.replayed, resumed.queue.paused_at, resumed.queue.paused_reason) == (False, None, None)
    assert pause(jobs, "q", paused=False).replayed


def test_a_queue_that_is_not_there_cannot_be_paused(jobs: Jobs) -> None:
    assert pause(jobs, "q").code.name == "not_found"
    assert pause(jobs, "q", paused=False).code.name == "not_found"
    assert jobs.rows(queues_table) == []


def test_resuming_wakes_who_waits_with_as_much_as_there_is(jobs: Jobs) -> None:
    for _ in range(3):
        jobs.enqueue("q", "a")
    jobs.enqueue("q", "b", delay=60)
    pause(jobs, "q")
    jobs.woken.clear()
    pause(jobs, "q", paused=False)
    assert jobs.woken == [{("q", "a", 1): 3}]


def test_a_pause_whose_answer_was_lost_is_answered_as_the_first_time(jobs: Jobs) -> None:
    jobs.enqueue("q")
    (first,), (second,) = jobs.repeat(queues.pause, queues.Pause("q", jobs.caller, "because"))
    assert not first.replayed
    assert not second.replayed
    assert second.queue.paused_at == first.queue.paused_at


def test_several_changes_of_one_queue_in_one_unit_are_made_in_their_order(jobs: Jobs) -> None:
    jobs.enqueue("q")
    commands = [queues.Pause("q", jobs.caller, "a"), queues.Pause("q", jobs.caller, "b")]
    first, second = jobs.database.run(queues.pause, commands)
    assert (first.replayed, second.replayed, second.queue.paused_reason) == (False, True, "a")


def test_the_list_goes_by_name_and_keeps_to_the_keys_patterns(jobs: Jobs) -> None:
    for name in ("b.2", "a", "b.1", "c"):
        put(jobs, name)

    def names(limit: int, after: str | None = None, *patterns: str) -> list[str]:
        listing = queues.Listing(principal("k", *patterns), limit, after)
        return [view.name for view in jobs.database.read(queues.list_queues, listing)]

    assert names(2) == ["a", "b.1", "b.2"], "one more than the limit"
    assert names(2, "b.1") == ["b.2", "c"]
    assert names(1, None, "b.*") == ["b.1", "b.2"]
    assert get(Jobs(jobs.database, jobs.host, Caller(principal("k", "b.*"), "r")), "a").code.name == "forbidden"


# -- over HTTP -------------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_queue_is_read_set_paused_and_resumed_over_http(service: Service) -> None:
    await service.get("/v1/queues/mail", status=404)
    made = await service.put("/v1/queues/mail", {"max_depth": 10, "description": "Mail"}, status=200)
    assert (made["name"], made["max_depth"], made["paused"]) == ("mail", 10, False)
    await service.post("/v1/jobs", {"queue": "mail", "type": "t", "payload": 1}, status=201)
    paused = await service.post("/v1/queues/mail/pause", {"reason": "down"}, status=200)
    assert (paused["paused"], paused["paused_reason"], paused["replayed"]) == (True, "down", False)
    assert (await service.post("/v1/queues/mail/pause", {"reason": "x"}, status=200))["replayed"]
    assert (await service.get("/v1/queues/mail", status=200))["counts"]["available"] == 1
    claim = {"queues": ["mail"], "worker": "w"}
    assert (await service.post("/v1/jobs/claim", claim, status=200))["jobs"] == []
    await service.post("/v1/queues/mail/resume", {"reason": "up"}, status=200)
    assert len((await service.post("/v1/jobs/claim", claim, status=200))["jobs"]) == 1
    await service.post("/v1/queues/none/pause", {"reason": "x"}, status=404)
    audit = await service.get("/v1/audit", params={"kind": "queue", "target": "mail"}, status=200)
    assert [entry["action"] for entry in audit["items"]] == ["jobs.resume_queue", "jobs.pause_queue", "jobs.put_queue"]


@pytest.mark.anyio
async def test_a_claim_that_waits_gets_the_work_when_its_queue_goes_on(service: Service) -> None:
    await service.post("/v1/jobs", {"queue": "mail", "type": "t", "payload": 1}, status=201)
    await service.post("/v1/queues/mail/pause", {"reason": "down"}, status=200)
    claim = asyncio.create_task(
        service.post("/v1/jobs/claim", {"queues": ["mail"], "worker": "w", "wait_seconds": 30}, status=200)
    )
    await service.at_desk("jobs", 1)
    await service.post("/v1/queues/mail/resume", {"reason": "up"}, status=200)
    assert len((await asyncio.wait_for(claim, 20))["jobs"]) == 1


@pytest.mark.anyio
async def test_queues_are_paged_by_name(service: Service) -> None:
    for name in ("c", "a", "b"):
        await service.put(f"/v1/queues/{name}", {}, status=200)
    first = await service.get("/v1/queues", params={"limit": 2}, status=200)
    assert [queue["name"] for queue in first["items"]] == ["a", "b"]
    rest = await service.get("/v1/queues", params={"limit": 2, "cursor": first["next_cursor"]}, status=200)
    assert ([queue["name"] for queue in rest["items"]], rest["next_cursor"]) == (["c"], None)
