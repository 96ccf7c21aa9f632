"""Settle, on every engine: only by the newest unexpired token, once, and the same answer for the same content ever after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app import reservations
from app.clock import MICROS, micros
from app.errors import Refusal
from app.primitives.jobs.model import (
    ENDED,
    Caller,
    Granted,
    NewJob,
    ReleaseReason,
    Settle,
    Settled,
    Settlement,
    State,
    new_id,
)
from app.primitives.jobs.ops.settle import settle
from app.primitives.jobs.store.values import LARGE_GROUP
from app.primitives.jobs.tables import job_events, job_results
from app.primitives.jobs.tables import jobs as jobs_table
from tests.primitives.jobs.driving import (
    CALLER,
    OUTCOMES,
    TOKEN_KEY,
    Jobs,
    done,
    every_outcome,
    failed,
    good,
    new_job,
    principal,
    reason,
    released,
    unknown,
)

LEADS_TO = {
    "succeeded": State.SUCCEEDED,
    "succeeded with a result": State.SUCCEEDED,
    "failed, to be tried again": State.SCHEDULED,
    "failed, to be tried again at once": State.AVAILABLE,
    "failed for good": State.DEAD,
    "unknown": State.UNKNOWN,
    "released": State.AVAILABLE,
    "released for later": State.SCHEDULED,
}


def running(jobs: Jobs, queue: str = "q", **fields: Any) -> Granted:
    jobs.enqueue(queue, **fields)
    return jobs.take(queue)


# -- what each outcome does ------------------------------------------------------------------------------------------------


@every_outcome
def test_each_outcome_leads_to_its_state(jobs: Jobs, name: str, queue: str) -> None:
    grant = running(jobs, queue)
    answer = jobs.settle(OUTCOMES[name](grant))
    row = jobs.job(grant.id)
    assert answer.state is row.state is LEADS_TO[name]
    assert (answer.id, answer.attempt, answer.replayed) == (grant.id, row.attempt, False)
    assert (row.ended_at is not None) == (row.state in ENDED)
    if row.state in ENDED:
        assert row.due_at == (row.ended_at or 0) + jobs.host.settings.jobs_retention_seconds * MICROS
        assert row.ended_request_id == CALLER.request_id
    if row.state is State.SCHEDULED:
        assert answer.available_at == row.available_at == row.due_at


def test_success_keeps_the_result_and_stores_no_event(jobs: Jobs) -> None:
    one, two = running(jobs), running(jobs)
    jobs.settle_all(done(one, b'{"a":1,"a":2}'), done(two))
    assert [(row.job_id, bytes(row.result)) for row in jobs.rows(job_results)] == [(one.id, b'{"a":1,"a":2}')]
    assert jobs.rows(job_events) == []


def test_a_failure_is_told_by_an_event_and_its_category_stays_on_the_job(jobs: Jobs) -> None:
    grant = running(jobs)
    caller = Caller(principal("key-9"), "request-9")
    jobs.settle(failed(grant, "timeout", message="no answer é😀", reference="err-1"), caller=caller)
    (event,) = jobs.events(grant.id)
    assert (event.kind, event.category, event.message, event.reference) == (
        "failed",
        "timeout",
        "no answer é😀",
        "err-1",
    )
    assert (event.attempt, event.fence, event.worker, event.request_id) == (1, 1, "w", "request-9")
    assert jobs.job(grant.id).category == "timeout"


def test_a_failure_waits_as_its_backoff_or_its_caller_says(jobs: Jobs) -> None:
    jobs.host.set(jobs_backoff_seconds=(10.0, 60.0))
    jobs.enqueue(max_attempts=9)
    for least in (10, 60, 60):
        grant = jobs.take()
        before = jobs.now
        at = jobs.settle(failed(grant)).available_at or 0
        assert least * MICROS <= at - before <= least * 1.2 * MICROS + 60 * MICROS
        assert jobs.host.promotions[-1] >= least
        jobs.move(least * 1.3 + 60)
        assert jobs.promote() == 1
    grant = jobs.take()
    before = jobs.now
    at = jobs.settle(failed(grant, delay=5)).available_at or 0
    assert 5 * MICROS <= at - before <= 65 * MICROS


def test_the_last_attempt_that_fails_leaves_the_job_dead(jobs: Jobs) -> None:
    jobs.enqueue(max_attempts=2)
    assert jobs.settle(failed(jobs.take(), delay=0)).state is State.AVAILABLE
    grant = jobs.take()
    assert (grant.attempt, grant.fence) == (2, 2)
    assert jobs.settle(failed(grant, "second")).state is State.DEAD
    assert jobs.kinds(grant.id) == ["failed", "failed", "dead"]
    assert jobs.job(grant.id).category == "second"


def test_a_job_is_dead_when_its_next_attempt_would_come_after_its_deadline(jobs: Jobs) -> None:
    until = jobs.now + 100 * MICROS
    early, late = running(jobs, retry_until=until), running(jobs, retry_until=until)
    assert jobs.settle(failed(early, delay=30)).state is State.SCHEDULED
    assert jobs.settle(failed(late, delay=130)).state is State.DEAD


def test_a_release_costs_no_attempt_and_is_not_held_to_the_deadline(jobs: Jobs) -> None:
    grant = running(jobs, max_attempts=1, retry_until=jobs.now + 10 * MICROS)
    answer = jobs.settle(released(grant, delay=60))
    assert (answer.state, answer.attempt) == (State.SCHEDULED, 0)
    row = jobs.job(grant.id)
    assert (row.attempt, row.releases, row.throttles, row.fence) == (0, 1, 0, 1)
    jobs.move(70)
    jobs.promote()
    again = jobs.take()
    assert (again.attempt, again.fence) == (1, 2)
    assert jobs.settle(failed(again)).state is State.DEAD


def test_releases_and_throttles_cost_no_attempt_and_have_ceilings_of_their_own(jobs: Jobs) -> None:
    """laravel/ideas#1381, river #1290 (scenario 8): throttled and deploy releases burn attempts, or go on for ever."""
    jobs.host.set(jobs_max_releases=25)
    jobs.enqueue(max_attempts=2)
    for number in range(50):
        why = (ReleaseReason.SHUTDOWN, ReleaseReason.THROTTLED)[number % 2]
        grant = jobs.take()
        assert grant.attempt == 1
        assert jobs.settle(released(grant, why)).state is State.AVAILABLE
    row = jobs.job(grant.id)
    assert (row.attempt, row.releases, row.throttles, row.fence) == (0, 25, 25, 50)
    last = jobs.settle(released(jobs.take(), ReleaseReason.THROTTLED))
    assert last.state is State.DEAD
    assert jobs.job(grant.id).category == "released_too_often"
    assert jobs.kinds(grant.id)[-2:] == ["released", "dead"]


def test_a_release_keeps_the_jobs_place_and_wakes_who_waits(jobs: Jobs) -> None:
    first = running(jobs)
    second = jobs.enqueue()
    jobs.woken.clear()
    jobs.settle(released(first))
    assert jobs.woken == [{("q", "t", 1): 1}]
    assert [grant.id for grant in jobs.claim(limit=2)] == [first.id, second.id]


@pytest.mark.parametrize("name", ["failed, to be tried again", "failed for good", "released", "released for later"])
def test_work_that_was_asked_to_cancel_is_cancelled_when_it_fails_or_is_released(jobs: Jobs, name: str) -> None:
    grant = running(jobs)
    jobs.ask_to_cancel(grant.id)
    assert jobs.settle(OUTCOMES[name](grant)).state is State.CANCELLED
    assert jobs.kinds(grant.id)[-1] == "cancelled"
    assert jobs.job(grant.id).ended_at is not None


def test_a_complete_that_comes_all_the_same_counts_and_an_unknown_stays_unknown(jobs: Jobs) -> None:
    one, two = running(jobs), running(jobs)
    jobs.ask_to_cancel(one.id)
    jobs.ask_to_cancel(two.id)
    assert jobs.settle(done(one)).state is State.SUCCEEDED
    assert jobs.settle(unknown(two)).state is State.UNKNOWN


def test_unknown_work_is_frozen(jobs: Jobs) -> None:
    grant = running(jobs, max_attempts=9)
    jobs.settle(unknown(grant))
    jobs.move(30 * 24 * 3600)
    assert (jobs.promote(), jobs.abandon(), jobs.purge()) == (0, 0, 0)
    assert jobs.claim() == ()
    assert jobs.job(grant.id).state is State.UNKNOWN


def test_the_queues_own_retention_counts(jobs: Jobs) -> None:
    from app.primitives.jobs.ops.flows import refresh_memory
    from app.primitives.jobs.tables import queues

    one, two = running(jobs), running(jobs)
    jobs.update(queues, queues.c.name == "q", retention_seconds=60)
    jobs.database.read(refresh_memory, None)
    jobs.settle_all(done(one), failed(two, retry=False))
    for grant in (one, two):
        row = jobs.job(grant.id)
        assert row.due_at == (row.ended_at or 0) + 60 * MICROS


# -- the same again --------------------------------------------------------------------------------------------------------


@every_outcome
def test_a_settlement_that_is_repeated_is_answered_as_before(
    jobs: Jobs, replica: Callable[[], Jobs], name: str, queue: str
) -> None:
    grant = running(jobs, queue)
    item = OUTCOMES[name](grant)
    first = jobs.settle(item)
    before = jobs.rows(jobs_table), jobs.rows(job_events), jobs.rows(job_results)
    for process in (jobs, replica()):
        assert process.settle(item) == replace(first, replayed=True)
    assert (jobs.rows(jobs_table), jobs.rows(job_events), jobs.rows(job_results)) == before


@every_outcome
def test_a_settlement_that_is_repeated_after_later_attempts_is_answered_as_before(
    jobs: Jobs, name: str, queue: str
) -> None:
    if LEADS_TO[name] in (State.AVAILABLE, State.SCHEDULED):
        for later in ("running", "succeeded", "dead"):
            repeated_after(jobs, name, f"{queue}-{later}", later)


def repeated_after(jobs: Jobs, name: str, queue: str, later: str) -> None:
    grant = running(jobs, queue)
    item = OUTCOMES[name](grant)
    first = jobs.settle(item)
    jobs.move(3600)
    jobs.promote()
    second = jobs.take(queue)
    if later != "running":
        jobs.settle(done(second, b"1") if later == "succeeded" else failed(second, retry=False))
    state = jobs.job(grant.id)
    assert jobs.settle(item) == replace(first, replayed=True)
    assert reason(jobs.settle_all(failed(grant, "something_else"))[0]) == "settlement_conflict"
    assert jobs.job(grant.id) == state


@every_outcome
def test_a_settlement_with_other_content_is_a_conflict_and_changes_nothing(jobs: Jobs, name: str, queue: str) -> None:
    grant = running(jobs, queue)
    jobs.settle(OUTCOMES[name](grant))
    before = jobs.rows(jobs_table), jobs.rows(job_events), jobs.rows(job_results)
    for other in (*(OUTCOMES[one](grant) for one in OUTCOMES if one != name), done(grant, b'{"n": 2}')):
        (refused,) = jobs.settle_all(other)
        assert reason(refused) == "settlement_conflict"
        assert isinstance(refused, Refusal)
        assert refused.http_status == 409
    assert (jobs.rows(jobs_table), jobs.rows(job_events), jobs.rows(job_results)) == before


def test_the_same_settlement_twice_in_one_batch_is_done_once(jobs: Jobs) -> None:
    one, two = running(jobs), running(jobs)
    first, again, other, failed_first, failed_again = jobs.settle_all(
        done(one, b"1"), done(one, b"1"), done(one, b"2"), failed(two), failed(two)
    )
    assert again == replace(good(first), replayed=True)
    assert reason(other) == "settlement_conflict"
    assert failed_again == replace(good(failed_first), replayed=True)
    assert len(jobs.rows(job_results)) == 1
    assert jobs.kinds(two.id) == ["failed"]


def test_the_same_settlement_of_two_requests_in_one_transaction_is_done_once(jobs: Jobs) -> None:
    grant = running(jobs)
    first, again = jobs.database.run(settle, [Settle((done(grant),), CALLER), Settle((done(grant),), CALLER)])
    assert again == [replace(good(first[0]), replayed=True)]


@pytest.mark.parametrize("size", [2, 2 * LARGE_GROUP])
def test_requests_that_share_a_transaction_keep_what_is_their_own(jobs: Jobs, size: int) -> None:
    """Small ones are written by one statement, large ones by a statement each: workers, leases, request ids, results."""
    jobs.enqueue_all(*(NewJob(new_id(), ("q", "t", 1), b"1") for _ in range(2 * size)))
    wanted = [jobs.wanted(limit=size, worker=f"worker-{number}", lease=60 + number) for number in range(2)]
    claimed = [good(outcome).grants for outcome in jobs.claim_all(*wanted)]
    rows = {row.id: row for row in jobs.rows(jobs_table)}
    for number, grants in enumerate(claimed):
        assert len(grants) == size
        told = {(rows[grant.id].worker, rows[grant.id].lease_micros) for grant in grants}
        assert told == {(f"worker-{number}", micros(60 + number))}

    commands = [
        Settle(
            tuple(done(grant, b"%d" % place) for place, grant in enumerate(grants)),
            Caller(CALLER.principal, f"request-{number}"),
        )
        for number, grants in enumerate(claimed)
    ]
    answers = jobs.database.run(settle, commands)
    assert {good(outcome).state for outcomes in answers for outcome in outcomes} == {State.SUCCEEDED}
    rows = {row.id: row for row in jobs.rows(jobs_table)}
    for number, command in enumerate(commands):
        assert {rows[item.id].ended_request_id for item in command.items} == {f"request-{number}"}
        assert all(rows[item.id].settlement_digest == item.digest for item in command.items)
    assert len(jobs.rows(job_results)) == 2 * size


@every_outcome
def test_a_settlement_whose_commit_got_no_answer_is_done_once_and_answered(jobs: Jobs, name: str, queue: str) -> None:
    grant, other = running(jobs, queue), running(jobs, queue)
    lost = replace(done(other), token="x" * 86)
    first, again = jobs.repeat(settle, Settle((OUTCOMES[name](grant), lost), CALLER))
    ((one, refused),), ((same, refused_again),) = first, again
    assert replace(good(same), replayed=False) == one
    assert reason(refused) == reason(refused_again) == "unknown_token"
    assert len(jobs.events(grant.id)) == {State.SUCCEEDED: 0, State.DEAD: 2}.get(LEADS_TO[name], 1)
    row = jobs.job(grant.id)
    assert (row.state, row.fence, row.releases + row.throttles <= 1) == (LEADS_TO[name], 1, True)


# -- who may not -----------------------------------------------------------------------------------------------------------


def test_a_token_that_is_none_and_a_job_that_is_none_are_refused(jobs: Jobs) -> None:
    grant = running(jobs)
    foreign = reservations.token(TOKEN_KEY, reservations.mint_grant(), grant.id, 1)
    other_installation = reservations.token(b"k" * 32, reservations.mint_grant(), grant.id, 1)
    wrong = [
        "",
        "x",
        "x" * 86,
        "é" * 86,
        grant.token[:-1],
        grant.token + "A",
        foreign,
        other_installation,
        flipped(grant.token),
    ]
    for token in wrong:
        (refused,) = jobs.settle_all(replace(done(grant), token=token))
        assert reason(refused) == "unknown_token"
        assert isinstance(refused, Refusal)
        assert refused.extra["current_fence"] == 1
    assert reason(jobs.settle_all(replace(done(grant), id=new_id()))[0]) == "not_found"
    assert jobs.job(grant.id).state is State.RUNNING
    assert jobs.settle(done(grant)).state is State.SUCCEEDED


def flipped(token: str) -> str:
    return token[:60] + ("A" if token[60] != "A" else "B") + token[61:]


def test_the_token_of_one_job_is_refused_for_another_of_the_same_claim(jobs: Jobs) -> None:
    """A claim of many jobs has one secret; a token says nothing about another's."""
    jobs.enqueue_all(new_job(), new_job())
    one, two = jobs.claim(limit=2)
    assert one.token[:42] == two.token[:42], "the same grant"
    before = jobs.rows(jobs_table)
    for name in OUTCOMES:
        assert reason(jobs.settle_all(OUTCOMES[name](replace(one, token=two.token)))[0]) == "unknown_token"
    assert jobs.rows(jobs_table) == before
    jobs.settle(released(one))
    assert reason(jobs.settle_all(released(replace(one, token=two.token)))[0]) == "unknown_token", "no replay"
    assert jobs.settle(done(two)).state is State.SUCCEEDED


@every_outcome
def test_an_expired_reservation_is_refused_before_any_sweep_has_seen_it(jobs: Jobs, name: str, queue: str) -> None:
    jobs.enqueue(queue)
    grant = jobs.take(queue, lease=10)
    jobs.move(11)
    jobs.host.abandonments.clear()
    (refused,) = jobs.settle_all(OUTCOMES[name](grant))
    assert reason(refused) == "expired"
    assert isinstance(refused, Refusal)
    assert refused.extra["current_fence"] == 1
    assert jobs.job(grant.id).state is State.RUNNING
    assert jobs.host.abandonments == [0], "the sweep is told at once"
    jobs.abandon()
    assert reason(jobs.settle_all(OUTCOMES[name](grant))[0]) == "expired"


@every_outcome
def test_past_the_attempts_ceiling_every_call_is_refused_whatever_the_heartbeats_said(
    jobs: Jobs, name: str, queue: str
) -> None:
    grant = running(jobs, queue, timeout=100)
    jobs.move(50)
    assert jobs.beat(grant, lease=3600).expires_at == (jobs.job(grant.id).claimed_at or 0) + 100 * MICROS
    jobs.move(51)
    assert reason(jobs.settle_all(OUTCOMES[name](grant))[0]) == "expired"
    assert jobs.job(grant.id).state is State.RUNNING


def test_a_superseded_token_is_refused_and_counts_for_nothing(jobs: Jobs) -> None:
    """rails/solid_queue #761 (scenario 1): the late first worker completes, then again, after another has claimed."""
    grant = running(jobs)
    jobs.move(61)
    jobs.abandon()
    jobs.move(100)
    jobs.promote()
    second = jobs.take()
    for name in OUTCOMES:
        (refused,) = jobs.settle_all(OUTCOMES[name](grant))
        assert reason(refused) == "superseded"
        assert isinstance(refused, Refusal)
        assert refused.extra["current_fence"] == 2
    assert jobs.job(grant.id).state is State.RUNNING
    assert jobs.settle(done(second, b"1")).state is State.SUCCEEDED
    assert reason(jobs.settle_all(done(grant))[0]) == "superseded"
    assert [bytes(row.result) for row in jobs.rows(job_results)] == [b"1"]


def test_a_worker_with_the_same_name_may_not_settle_for_another(jobs: Jobs) -> None:
    """oban#1488, oban-py#32 (scenario 10): identity is the host's name."""
    one, two = running(jobs), running(jobs)
    assert jobs.job(one.id).worker == jobs.job(two.id).worker
    assert reason(jobs.settle_all(replace(done(one), token=two.token))[0]) == "unknown_token"


def test_a_cancelled_reservation_says_so(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take(lease=10)
    jobs.ask_to_cancel(grant.id)
    jobs.move(11)
    jobs.abandon()
    assert jobs.job(grant.id).state is State.CANCELLED
    assert reason(jobs.settle_all(done(grant))[0]) == "cancelled"


def test_a_key_whose_patterns_do_not_cover_the_queue_may_not_settle(jobs: Jobs) -> None:
    grant = running(jobs)
    narrow = Caller(principal("key-1", "billing.*"), "r")
    assert reason(jobs.settle_all(done(grant), caller=narrow)[0]) == "forbidden"
    assert jobs.settle(done(grant), caller=Caller(principal("key-2", "q*"), "r")).state is State.SUCCEEDED


def test_batches_have_mixed_results_in_the_order_sent_and_each_stands_for_itself(jobs: Jobs) -> None:
    grants = [running(jobs) for _ in range(6)]
    jobs.settle(done(grants[1]))
    gone = replace(done(grants[0]), id=new_id())
    items: list[Settlement] = [
        done(grants[0], b"[]"),
        gone,
        done(grants[1]),
        failed(grants[2]),
        replace(done(grants[3]), token="?"),
        released(grants[4]),
        unknown(grants[5]),
        failed(grants[1]),
    ]
    told = [reason(one) if isinstance(one, Refusal) else (one.state, one.replayed) for one in jobs.settle_all(*items)]
    assert told == [
        (State.SUCCEEDED, False),
        "not_found",
        (State.SUCCEEDED, True),
        (State.SCHEDULED, False),
        "unknown_token",
        (State.AVAILABLE, False),
        (State.UNKNOWN, False),
        "settlement_conflict",
    ]
    assert jobs.job(grants[3].id).state is State.RUNNING


def test_a_thousand_settlements_are_one_commit(jobs: Jobs) -> None:
    jobs.enqueue_all(*(new_job("q", f"t{number % 3}") for number in range(1000)))
    grants = [grant for _ in range(10) for grant in jobs.claim(limit=100)]
    items = [done(grant, b"%d" % number) if number % 4 else failed(grant) for number, grant in enumerate(grants)]
    outcomes = jobs.settle_all(*items)
    assert [good(one).id for one in outcomes] == [grant.id for grant in grants]
    assert [good(one).state for one in outcomes] == [
        State.SUCCEEDED if number % 4 else State.SCHEDULED for number in range(1000)
    ]
    assert len(jobs.rows(job_results)) == 750
    figures, _ = jobs.host.memory.take()
    assert sum(amount for (_, _, figure), amount in figures.items() if figure == 1) == 750


def test_whether_the_settled_answer_is_the_state_on_disk(jobs: Jobs) -> None:
    grants = {name: running(jobs) for name in OUTCOMES}
    for name, grant in grants.items():
        answer: Settled = jobs.settle(OUTCOMES[name](grant))
        row = jobs.job(grant.id)
        assert (answer.state, answer.attempt) == (row.state, row.attempt)
