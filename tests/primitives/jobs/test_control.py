"""Cancel, retry and reconcile, on every engine: what each state allows, once, and again after a lost answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.errors import Refusal
from app.primitives.audit.tables import audit
from app.primitives.jobs.model import Caller, Control, Controlled, State, Verdict, new_id
from app.primitives.jobs.ops.control import cancel, reconcile, retry
from app.primitives.jobs.tables import jobs as jobs_table
from tests.primitives.jobs.driving import Jobs, done, failed, good, principal, reason, released, unknown
from tests.service import Service

EVIDENCE = b'{"b": 1, "a": 2.50, "b": 3}'


def control(jobs: Jobs, job_id: bytes, why: str = "because", **fields: Any) -> Control:
    return Control(job_id, fields.pop("caller", jobs.caller), why, **fields)


def verdict(jobs: Jobs, job_id: bytes, given: Verdict, **fields: Any) -> Control:
    return control(jobs, job_id, verdict=given, evidence=fields.pop("evidence", EVIDENCE), **fields)


def run(jobs: Jobs, op: Callable[..., Any], command: Control) -> Any:
    (outcome,) = jobs.database.run(op, [command])
    return outcome


def code(outcome: Any) -> str:
    assert isinstance(outcome, Refusal), outcome
    return outcome.code.name


def in_state(jobs: Jobs, state: State) -> bytes:
    """A job that has come to this state as workers bring it there."""
    job = jobs.enqueue(delay=60 if state is State.SCHEDULED else None)
    if state in (State.AVAILABLE, State.SCHEDULED):
        return job.id
    if state is State.CANCELLED:
        good(run(jobs, cancel, control(jobs, job.id)))
        return job.id
    grant = jobs.take()
    if state is State.SUCCEEDED:
        jobs.settle(done(grant))
    if state is State.DEAD:
        jobs.settle(failed(grant, retry=False))
    if state is State.UNKNOWN:
        jobs.settle(unknown(grant))
    return job.id


# -- cancel ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.AVAILABLE, State.SCHEDULED])
def test_a_job_that_waits_is_cancelled_at_once_and_kept_for_its_retention(jobs: Jobs, state: State) -> None:
    job_id = in_state(jobs, state)
    outcome = good(run(jobs, cancel, control(jobs, job_id, "not wanted")))
    assert not outcome.replayed
    job = jobs.job(job_id)
    assert (job.state, job.ended_request_id) == (State.CANCELLED, "request-1")
    assert (job.due_at or 0) - (job.ended_at or 0) == int(jobs.host.settings.jobs_retention_seconds) * 1_000_000
    assert replace(outcome.job, correlation_id=None) == job
    (event,) = jobs.events(job_id)
    assert (event.kind, event.message, event.actor, event.request_id) == (
        "cancelled",
        "not wanted",
        jobs.caller.principal.key_id,
        "request-1",
    )
    assert jobs.claim() == ()


def test_a_running_job_is_asked_and_learns_why_at_its_next_heartbeat(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take(lease=30)
    outcome = good(run(jobs, cancel, control(jobs, grant.id, "too late")))
    assert (outcome.job.state, outcome.job.cancel_requested_at is not None) == (State.RUNNING, True)
    assert jobs.job(grant.id).due_at == grant.expires_at, "its lease is left alone"
    renewed = jobs.beat(grant)
    assert (renewed.cancel_requested, renewed.cancel_reason) == (True, "too late")
    jobs.settle(released(grant))
    assert jobs.job(grant.id).state is State.CANCELLED


def test_a_complete_that_comes_after_all_counts(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take()
    good(run(jobs, cancel, control(jobs, grant.id)))
    jobs.settle(done(grant))
    assert jobs.job(grant.id).state is State.SUCCEEDED


def test_an_asked_job_whose_lease_ends_is_cancelled(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take(lease=30)
    good(run(jobs, cancel, control(jobs, grant.id)))
    jobs.move(31)
    jobs.abandon()
    assert jobs.job(grant.id).state is State.CANCELLED


@pytest.mark.parametrize("state", [State.AVAILABLE, State.RUNNING])
def test_cancelling_twice_is_a_repeat(jobs: Jobs, state: State) -> None:
    job_id = in_state(jobs, state)
    good(run(jobs, cancel, control(jobs, job_id, "first")))
    before = jobs.job(job_id)
    jobs.move(1)
    again = good(run(jobs, cancel, control(jobs, job_id, "second")))
    assert again.replayed
    assert jobs.job(job_id) == before
    assert len(jobs.events(job_id)) == 1


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.DEAD])
def test_a_job_that_ended_otherwise_cannot_be_cancelled(jobs: Jobs, state: State) -> None:
    job_id = in_state(jobs, state)
    refusal = run(jobs, cancel, control(jobs, job_id))
    assert (code(refusal), refusal.extra["state"]) == ("state_conflict", state.text)
    assert jobs.job(job_id).state is state


@pytest.mark.parametrize("op", [cancel, retry])
def test_an_unknown_job_needs_a_verdict_first(jobs: Jobs, op: Callable[..., Any]) -> None:
    job_id = in_state(jobs, State.UNKNOWN)
    assert code(run(jobs, op, control(jobs, job_id))) == "verdict_required"
    assert jobs.job(job_id).state is State.UNKNOWN


# -- retry -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.DEAD, State.CANCELLED])
def test_a_retry_gives_a_fresh_budget_and_keeps_the_fence(jobs: Jobs, state: State) -> None:
    job_id = in_state(jobs, state)
    fence = jobs.job(job_id).fence
    jobs.update(jobs_table, jobs_table.c.id == job_id, lease_losses=2, releases=3, throttles=4, attempt=5)
    jobs.woken.clear()
    outcome = good(run(jobs, retry, control(jobs, job_id, "mended")))
    job = jobs.job(job_id)
    assert (job.state, job.attempt, job.lease_losses, job.releases, job.throttles) == (State.AVAILABLE, 0, 0, 0, 0)
    assert (job.fence, job.ended_at, job.due_at, job.cancel_requested_at) == (fence, None, None, None)
    assert outcome == Controlled(job)
    assert jobs.woken == [{("q", "t", 1): 1}]
    assert jobs.kinds(job_id)[-1] == "retried"
    assert jobs.take().fence == fence + 1


def test_a_token_from_before_a_retry_is_not_good_for_the_attempt_after_it(jobs: Jobs) -> None:
    jobs.enqueue()
    old = jobs.take()
    jobs.settle(failed(old, retry=False))
    good(run(jobs, retry, control(jobs, old.id)))
    jobs.take()
    (late,) = jobs.settle_all(done(old))
    assert reason(late) == "settlement_conflict"
    (beat,) = jobs.beat_all(_beat_of(old))
    assert reason(beat) == "superseded"


def _beat_of(grant: Any) -> Any:
    from app.primitives.jobs.model import Beat

    return Beat(grant.id, grant.token, 60_000_000)


def test_the_same_retry_again_is_a_repeat_until_something_else_happens(jobs: Jobs) -> None:
    job_id = in_state(jobs, State.DEAD)
    assert not good(run(jobs, retry, control(jobs, job_id, "mended"))).replayed
    assert good(run(jobs, retry, control(jobs, job_id, "mended"))).replayed
    assert code(run(jobs, retry, control(jobs, job_id, "another reason"))) == "state_conflict"
    other = Caller(principal("other"), "r")
    assert code(run(jobs, retry, control(jobs, job_id, "mended", caller=other))) == "state_conflict"
    grant = jobs.take()
    assert code(run(jobs, retry, control(jobs, job_id, "mended"))) == "state_conflict"
    jobs.settle(released(grant))
    assert code(run(jobs, retry, control(jobs, job_id, "mended"))) == "state_conflict"


@pytest.mark.parametrize("state", [State.AVAILABLE, State.SCHEDULED, State.RUNNING, State.SUCCEEDED])
def test_only_dead_and_cancelled_jobs_are_retried(jobs: Jobs, state: State) -> None:
    job_id = in_state(jobs, state)
    before = jobs.job(job_id)
    assert code(run(jobs, retry, control(jobs, job_id))) == "state_conflict"
    assert jobs.job(job_id) == before


# -- reconcile -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "left"),
    [(Verdict.SUCCEEDED, State.SUCCEEDED), (Verdict.DEAD, State.DEAD), (Verdict.RETRY, State.AVAILABLE)],
)
def test_a_verdict_moves_an_unknown_job_and_its_evidence_is_kept_as_sent(
    jobs: Jobs, given: Verdict, left: State
) -> None:
    job_id = in_state(jobs, State.UNKNOWN)
    outcome = good(run(jobs, reconcile, verdict(jobs, job_id, given, reference="ch_1")))
    job = jobs.job(job_id)
    assert (outcome.replayed, outcome.job.state, job.state) == (False, left, left)
    assert (job.ended_at is None) == (left is State.AVAILABLE)
    event = jobs.events(job_id)[-1]
    assert (event.kind, event.category, bytes(event.detail), event.reference) == (
        "reconciled",
        given.value,
        EVIDENCE,
        "ch_1",
    )


def test_the_first_verdict_stands(jobs: Jobs) -> None:
    job_id = in_state(jobs, State.UNKNOWN)
    good(run(jobs, reconcile, verdict(jobs, job_id, Verdict.DEAD)))
    again = good(run(jobs, reconcile, verdict(jobs, job_id, Verdict.DEAD, evidence=b'"other"')))
    assert (again.replayed, again.job.state) == (True, State.DEAD)
    refusal = run(jobs, reconcile, verdict(jobs, job_id, Verdict.RETRY))
    assert (code(refusal), refusal.extra["verdict"]) == ("verdict_conflict", "dead")
    assert jobs.kinds(job_id).count("reconciled") == 1


def test_of_two_verdicts_in_one_unit_the_first_counts(jobs: Jobs) -> None:
    job_id = in_state(jobs, State.UNKNOWN)
    first, same, other = jobs.database.run(
        reconcile,
        [
            verdict(jobs, job_id, Verdict.SUCCEEDED),
            verdict(jobs, job_id, Verdict.SUCCEEDED),
            verdict(jobs, job_id, Verdict.DEAD),
        ],
    )
    assert (good(first).replayed, good(same).replayed, code(other)) == (False, True, "verdict_conflict")


@pytest.mark.parametrize("state", [one for one in State if one is not State.UNKNOWN])
def test_a_job_that_was_never_unknown_takes_no_verdict(jobs: Jobs, state: State) -> None:
    job_id = in_state(jobs, state)
    assert code(run(jobs, reconcile, verdict(jobs, job_id, Verdict.DEAD))) == "state_conflict"


def test_a_job_that_is_unknown_anew_takes_a_new_verdict_but_not_the_old_request(jobs: Jobs) -> None:
    job_id = in_state(jobs, State.UNKNOWN)
    first = verdict(jobs, job_id, Verdict.RETRY)
    good(run(jobs, reconcile, first))
    jobs.settle(unknown(jobs.take(), "again"))
    late = good(run(jobs, reconcile, first))
    assert (late.replayed, late.job.state) == (True, State.UNKNOWN), "the repeat of a lost answer retries nothing"
    new = replace(first, caller=Caller(jobs.caller.principal, "request-2"))
    assert good(run(jobs, reconcile, new)).job.state is State.AVAILABLE


# -- all of them -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [cancel, retry, reconcile])
def test_an_id_that_names_nothing_is_not_found(jobs: Jobs, op: Callable[..., Any]) -> None:
    assert code(run(jobs, op, verdict(jobs, new_id(), Verdict.DEAD))) == "not_found"


@pytest.mark.parametrize(("op", "state"), [(cancel, State.AVAILABLE), (retry, State.DEAD), (reconcile, State.UNKNOWN)])
def test_a_key_limited_to_other_queues_may_not(jobs: Jobs, op: Callable[..., Any], state: State) -> None:
    job_id = in_state(jobs, state)
    limited = Caller(principal("k", "billing.*"), "r")
    assert code(run(jobs, op, verdict(jobs, job_id, Verdict.DEAD, caller=limited))) == "forbidden"
    assert jobs.job(job_id).state is state
    assert jobs.rows(audit, audit.c.action != "jobs.cancel") == []


@pytest.mark.parametrize(
    ("op", "state"),
    [(cancel, State.AVAILABLE), (cancel, State.RUNNING), (retry, State.DEAD), (reconcile, State.UNKNOWN)],
)
def test_a_lost_answer_is_given_as_the_first_time_and_audited_once(
    jobs: Jobs, op: Callable[..., Any], state: State
) -> None:
    job_id = in_state(jobs, state)
    command = verdict(jobs, job_id, Verdict.SUCCEEDED)
    (first,), (second,) = jobs.repeat(op, command)
    assert (good(first).replayed, good(second).replayed) == (False, False)
    assert good(second).job.state is good(first).job.state
    (entry,) = jobs.rows(audit)
    assert (entry.action, entry.kind, entry.reason) == (f"jobs.{op.__name__}", "job", "because")


def test_many_commands_share_a_unit_and_each_has_its_own_outcome(jobs: Jobs) -> None:
    ids = [in_state(jobs, state) for state in (State.SCHEDULED, State.SUCCEEDED, State.RUNNING)]
    wanted = [control(jobs, job_id) for job_id in (*ids, new_id(), ids[0])]
    first, second, third, fourth, fifth = jobs.database.run(cancel, wanted)
    assert (good(first).job.state, good(third).job.state) == (State.CANCELLED, State.RUNNING)
    assert (code(second), code(fourth), good(fifth).replayed) == ("state_conflict", "not_found", True)


# -- over HTTP -------------------------------------------------------------------------------------------------------------


async def claimed(service: Service) -> tuple[str, str]:
    """A job in a worker's hands: its id and its token."""
    await service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": {}, "correlation_id": "c"}, status=201)
    (job,) = (await service.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w"}, status=200))["jobs"]
    return job["id"], job["reservation"]["token"]


@pytest.mark.anyio
async def test_a_job_is_cancelled_and_retried_over_http(service: Service) -> None:
    job = await service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": {}, "correlation_id": "c"}, status=201)
    path = f"/v1/jobs/{job['id']}"
    await service.post(f"{path}/cancel", {}, status=422)
    gone = await service.post(f"{path}/cancel", {"reason": "no"}, status=200)
    assert (gone["state"], gone["replayed"], gone["correlation_id"]) == ("cancelled", False, "c")
    assert (await service.post(f"{path}/cancel", {"reason": "no"}, status=200))["replayed"]
    back = await service.post(f"{path}/retry", {"reason": "yes"}, status=200)
    assert (back["state"], back["attempt"], back["replayed"]) == ("available", 0, False)
    problem = await service.post(f"{path}/reconcile", {"verdict": "dead", "evidence": None}, status=409)
    assert problem["code"] == "state_conflict"


@pytest.mark.anyio
async def test_a_verdict_is_given_over_http(service: Service) -> None:
    job_id, token = await claimed(service)
    await service.post(f"/v1/jobs/{job_id}/unknown", {"token": token, "category": "no_answer"}, status=200)
    problem = await service.post(f"/v1/jobs/{job_id}/retry", {"reason": "x"}, status=409)
    assert problem["code"] == "verdict_required"
    body = b'{"verdict": "succeeded", "evidence": {"n": 1.50, "n": 2}, "reference": "ch_1"}'
    answer = await service.client.post(
        f"/v1/jobs/{job_id}/reconcile", content=body, headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()["state"]) == (200, "succeeded")
    told = await service.client.get(f"/v1/jobs/{job_id}")
    assert b'"evidence":{"n": 1.50, "n": 2}' in told.content
    other = await service.post(f"/v1/jobs/{job_id}/reconcile", {"verdict": "dead", "evidence": 1}, status=409)
    assert (other["code"], other["verdict"]) == ("verdict_conflict", "succeeded")


@pytest.mark.anyio
async def test_a_cancelled_worker_is_told_over_http(service: Service) -> None:
    job_id, token = await claimed(service)
    await service.post(f"/v1/jobs/{job_id}/cancel", {"reason": "stop it"}, status=200)
    beat = await service.post(f"/v1/jobs/{job_id}/heartbeat", {"token": token}, status=200)
    assert (beat["cancel_requested"], beat["cancel_reason"]) == (True, "stop it")
