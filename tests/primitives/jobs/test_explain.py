"""Explain, on every engine: each reason why a job does not run, with its evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.errors import Refusal
from app.primitives.jobs.model import Claim, Control, State, new_id
from app.primitives.jobs.ops import queues, stats
from app.primitives.jobs.ops.control import cancel
from app.primitives.jobs.ops.explain import Explain, explain
from app.primitives.jobs.store import lists
from tests.primitives.jobs.driving import Jobs, done, failed, principal, released, unknown
from tests.service import Service


def asked(jobs: Jobs, job_id: bytes, *patterns: str, waiting: tuple[Claim, ...] = ()) -> Any:
    return jobs.database.read(explain, Explain(job_id, principal("k", *patterns), waiting))


def reasons(jobs: Jobs, job_id: bytes, **wanted: Any) -> dict[str, Any]:
    """By code, the evidence."""
    return {reason.code: reason.evidence for reason in asked(jobs, job_id, **wanted).reasons}


def flush(jobs: Jobs) -> None:
    jobs.database.run(stats.flush, [jobs.host.memory.take()])


# -- who has ended, runs, or waits for a verdict ---------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [done, lambda grant: failed(grant, "broken", retry=False)])
def test_a_job_that_has_ended_says_so(jobs: Jobs, settled: Callable[[Any], Any]) -> None:
    jobs.enqueue()
    grant = jobs.take(worker="w")
    jobs.settle(settled(grant))
    ((code, evidence),) = reasons(jobs, grant.id).items()
    job = jobs.job(grant.id)
    assert (code, evidence.at, evidence.worker, evidence.category) == ("ended", job.ended_at, "w", job.category)


def test_an_unknown_job_waits_for_a_verdict(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take()
    jobs.settle(unknown(grant, "no_answer", message="cut off"))
    evidence = reasons(jobs, grant.id)["verdict_required"]
    assert (evidence.category, evidence.message, evidence.since) == (
        "no_answer",
        "cut off",
        jobs.events(grant.id)[0].at,
    )


def test_a_running_job_names_its_worker_and_the_end_of_its_lease(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take(worker="mailer-1", lease=30)
    ((code, evidence),) = reasons(jobs, grant.id).items()
    assert (code, evidence.worker, evidence.expires_at, evidence.attempt) == (
        "running",
        "mailer-1",
        grant.expires_at,
        1,
    )
    jobs.database.run(cancel, [Control(grant.id, jobs.caller, "too late")])
    both = reasons(jobs, grant.id)
    assert list(both) == ["cancel_requested", "running"]
    assert both["cancel_requested"].reason == "too late"


# -- who is not due yet ----------------------------------------------------------------------------------------------------


def test_a_delayed_job_says_until_when(jobs: Jobs) -> None:
    job = jobs.enqueue(delay=60)
    evidence = reasons(jobs, job.id)["due_later"]
    assert (evidence.at, evidence.why, evidence.category) == (job.available_at, "delayed", None)


def test_a_job_in_backoff_tells_the_error_that_it_waits_for(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take()
    jobs.settle(failed(grant, "timeout", message="no answer", delay=60))
    evidence = reasons(jobs, grant.id)["due_later"]
    assert (evidence.why, evidence.category, evidence.message, evidence.attempt) == (
        "backoff",
        "timeout",
        "no answer",
        1,
    )


def test_a_job_after_a_lost_lease_still_tells_the_last_real_error(jobs: Jobs) -> None:
    jobs.enqueue()
    jobs.settle(failed(jobs.take(), "timeout", message="no answer", delay=0))
    grant = jobs.take(lease=5)
    jobs.move(6)
    jobs.abandon()
    evidence = reasons(jobs, grant.id)["due_later"]
    assert (evidence.why, evidence.category, evidence.message) == ("lease_lost", "timeout", "no answer")


def test_a_job_released_for_later_says_so(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take()
    jobs.settle(released(grant, delay=60))
    assert reasons(jobs, grant.id)["due_later"].why == "released"


# -- who waits -------------------------------------------------------------------------------------------------------------


def test_a_job_that_nothing_holds_is_ready(jobs: Jobs) -> None:
    jobs.claim("q")
    job = jobs.enqueue()
    assert list(reasons(jobs, job.id)) == ["ready"]


def test_a_paused_queue_holds_its_jobs_and_says_since_when_and_why(jobs: Jobs) -> None:
    jobs.claim("q")
    job, later = jobs.enqueue(), jobs.enqueue(delay=60)
    (paused,) = jobs.database.run(queues.pause, [queues.Pause("q", jobs.caller, "the provider is down")])
    evidence = reasons(jobs, job.id)["queue_paused"]
    assert (evidence.since, evidence.reason) == (paused.queue.paused_at, "the provider is down")
    assert list(reasons(jobs, later.id)) == ["due_later", "queue_paused"]


def test_others_before_it_are_counted_up_to_a_ceiling(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.claim("q")
    last = jobs.enqueue(priority=5)
    for priority in (-1, 0, 5):
        jobs.enqueue(priority=priority)
    jobs.enqueue("q", "other type", priority=-9)
    assert reasons(jobs, last.id)["behind_others"].ahead == 2
    assert jobs.database.read(lambda tx, row: lists.count_ahead(tx, row, 1), _row(jobs, last.id)) == 1


def _row(jobs: Jobs, job_id: bytes) -> Any:
    return jobs.database.read(lets_see, job_id)


def lets_see(tx: Any, job_id: bytes) -> Any:
    return lists.select_job(tx, job_id)


def test_a_queue_that_nobody_claims_from_says_so(jobs: Jobs, replica: Callable[[], Jobs]) -> None:
    job = jobs.enqueue()
    assert reasons(jobs, job.id)["no_worker_seen"].since is None
    jobs.claim("q", handlers=[("t", (1,))])
    assert list(reasons(jobs, job.id)) == ["running"]
    other = jobs.enqueue()
    assert list(reasons(jobs, other.id)) == ["ready"]
    seen = jobs.now
    jobs.move(jobs.host.settings.silent_after_seconds + 1)
    evidence = reasons(jobs, other.id)["no_worker_seen"]
    assert 0 <= seen - (evidence.since or 0) < 60_000_000


def test_workers_that_do_not_name_its_type_are_told_apart_from_none(jobs: Jobs) -> None:
    """river#1105: work of a type that no worker knows."""
    jobs.claim("q", worker="w1", handlers=[("t", (1,))])
    jobs.claim("q", worker="w2", handlers=[("u", (1, 2))])
    assert reasons(jobs, jobs.enqueue("q", "t", 2).id)["no_handler"].workers == ("w1", "w2")
    assert list(reasons(jobs, jobs.enqueue("q", "u", 2).id)) == ["ready"]


def test_what_another_replica_has_flushed_counts(jobs: Jobs, replica: Callable[[], Jobs]) -> None:
    job = jobs.enqueue()
    other = replica()
    other.claim("q", handlers=[("nothing", (1,))])
    assert "no_worker_seen" in reasons(jobs, job.id)
    flush(other)
    assert "no_handler" in reasons(jobs, job.id)


def test_a_heartbeat_flushed_later_does_not_hide_what_a_worker_handles(jobs: Jobs, replica: Callable[[], Jobs]) -> None:
    jobs.enqueue()
    grant = jobs.take(handlers=[("t", (1,))])
    flush(jobs)
    jobs.beat(grant)
    flush(jobs)
    other = jobs.enqueue("q", "else")
    assert "no_handler" in reasons(replica(), other.id)


def test_a_claim_that_waits_at_this_process_counts_as_claiming_now(jobs: Jobs) -> None:
    job = jobs.enqueue()
    assert list(reasons(jobs, job.id, waiting=(jobs.wanted("q"),))) == ["ready"]
    assert "no_handler" in reasons(jobs, job.id, waiting=(jobs.wanted("q", handlers=[("u", (1,))]),))
    assert "no_worker_seen" in reasons(jobs, job.id, waiting=(jobs.wanted("other"),))


# -- who may ask -----------------------------------------------------------------------------------------------------------


def test_an_id_that_names_nothing_and_a_queue_outside_the_patterns_are_refused(jobs: Jobs) -> None:
    job = jobs.enqueue("billing.eu")
    for refusal, code in ((asked(jobs, new_id()), "not_found"), (asked(jobs, job.id, "mail.*"), "forbidden")):
        assert isinstance(refusal, Refusal)
        assert refusal.code.name == code
    assert asked(jobs, job.id, "billing.*").job.id == job.id


@pytest.mark.parametrize("state", list(State))
def test_there_is_always_a_reason(jobs: Jobs, state: State) -> None:
    from tests.primitives.jobs.test_control import in_state

    assert asked(jobs, in_state(jobs, state)).reasons


# -- over HTTP -------------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_job_is_explained_over_http(service: Service) -> None:
    job = await service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": 1, "delay_seconds": 60}, status=201)
    told = await service.get(f"/v1/jobs/{job['id']}/explain", status=200)
    assert [reason["code"] for reason in told["reasons"]] == ["due_later", "no_worker_seen"]
    assert told["reasons"][0]["evidence"]["at"] == job["available_at"]
    await service.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w"}, status=200)
    service.move(61)
    await service.sweep("jobs.promote")
    await service.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w", "lease_seconds": 5}, status=200)
    told = await service.get(f"/v1/jobs/{job['id']}/explain", status=200)
    assert told["reasons"][0]["evidence"]["worker"] == "w"
    service.move(6)
    told = await service.get(f"/v1/jobs/{job['id']}/explain", status=200)
    assert (told["state"], told["reasons"][0]["evidence"]["why"]) == ("scheduled", "lease_lost")
