"""Sweeps, on every engine: leases that ended, times that have come, work that may be forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.clock import MICROS
from app.primitives.jobs.model import ENDED, Granted, State
from app.primitives.jobs.ops.sweep import Batch, abandon, promote, purge
from app.primitives.jobs.tables import (
    job_claims,
    job_contents,
    job_events,
    job_keys,
    job_progress,
    job_refs,
    job_results,
)
from app.primitives.jobs.tables import jobs as jobs_table
from tests.primitives.jobs.driving import OUTCOMES, Jobs, done, every_outcome, failed, new_job, reason, released

BACKOFF_SECONDS = 1200  # longer than the longest pause with its jitter


def abandoned(jobs: Jobs, **fields: Any) -> Granted:
    """A job whose one attempt was lost."""
    jobs.enqueue(**fields)
    grant = jobs.take(lease=10)
    lose(jobs)
    return grant


def lose(jobs: Jobs) -> None:
    jobs.move(11)
    assert jobs.abandon() == 1


def again(jobs: Jobs) -> Granted:
    jobs.move(BACKOFF_SECONDS)
    jobs.promote()
    return jobs.take(lease=10)


# -- leases that ended -----------------------------------------------------------------------------------------------------


def test_a_lease_that_holds_is_left_alone(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take(lease=10)
    jobs.move(9)
    assert jobs.abandon() == 0
    jobs.beat(grant, lease=10)
    jobs.move(9)
    assert jobs.abandon() == 0
    assert jobs.settle(done(grant)).state is State.SUCCEEDED
    jobs.move(60)
    assert jobs.abandon() == 0


def test_a_lost_attempt_comes_again_at_the_backoffs_pace(jobs: Jobs) -> None:
    grant = abandoned(jobs)
    row = jobs.job(grant.id)
    assert (row.state, row.attempt, row.lease_losses, row.fence, row.category) == (
        State.SCHEDULED,
        1,
        1,
        1,
        "abandoned",
    )
    assert row.available_at >= jobs.now + 9 * MICROS
    assert row.available_at <= jobs.now + 12 * MICROS
    (event,) = jobs.events(grant.id)
    assert (event.kind, event.category, event.attempt, event.fence, event.worker) == (
        "abandoned",
        "abandoned",
        1,
        1,
        "w",
    )
    second = again(jobs)
    assert (second.id, second.attempt, second.fence) == (grant.id, 2, 2)


def test_work_that_crashes_its_worker_ends_after_its_attempts(jobs: Jobs) -> None:
    """camunda#2858, sidekiq#4633 (scenario 6): a poison pill's crashes never count."""
    jobs.host.set(jobs_max_lease_losses=99)
    abandoned(jobs, max_attempts=3)
    for _ in range(2):
        grant = again(jobs)
        lose(jobs)
    row = jobs.job(grant.id)
    assert (row.state, row.attempt, row.lease_losses, row.category) == (State.DEAD, 3, 3, "abandoned")
    assert row.ended_at is not None
    assert jobs.kinds(grant.id) == ["abandoned", "abandoned", "abandoned", "dead"]
    jobs.move(BACKOFF_SECONDS)
    assert (jobs.promote(), jobs.abandon(), jobs.claim()) == (0, 0, ())


def test_work_that_crashes_its_worker_ends_after_its_lease_losses_also_with_attempts_left(jobs: Jobs) -> None:
    """hindsight#2675, NexJob#143 (scenario 6): after max lease losses the job is terminal, once."""
    jobs.host.set(jobs_max_lease_losses=2)
    abandoned(jobs, max_attempts=99)
    grant = again(jobs)
    lose(jobs)
    row = jobs.job(grant.id)
    assert (row.state, row.attempt, row.lease_losses, row.category) == (State.DEAD, 2, 2, "abandoned")
    assert jobs.kinds(grant.id).count("dead") == 1


def test_a_job_that_dies_of_a_lost_lease_keeps_its_last_real_error_in_its_events(jobs: Jobs) -> None:
    jobs.enqueue(max_attempts=2)
    jobs.settle(failed(jobs.take(), "timeout", message="no answer", delay=0))
    jobs.take(lease=10)
    lose(jobs)
    (row,) = jobs.rows(jobs_table)
    assert (row.state, row.category) == (State.DEAD, "abandoned")
    told = [(event.kind, event.category, event.message) for event in jobs.events(row.id)]
    assert told == [
        ("failed", "timeout", "no answer"),
        ("abandoned", "abandoned", None),
        ("dead", "abandoned", None),
    ]


def test_a_lost_attempt_after_which_the_deadline_has_passed_leaves_the_job_dead(jobs: Jobs) -> None:
    grant = abandoned(jobs, retry_until=jobs.now + 15 * MICROS)
    assert jobs.job(grant.id).state is State.DEAD


def test_work_that_was_asked_to_cancel_is_cancelled_when_its_lease_ends(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take(lease=10)
    jobs.ask_to_cancel(grant.id)
    lose(jobs)
    row = jobs.job(grant.id)
    assert (row.state, row.lease_losses) == (State.CANCELLED, 1)
    assert jobs.kinds(grant.id) == ["cancel_requested", "abandoned", "cancelled"]


def test_by_policy_a_lost_attempt_is_unknown_and_frozen(jobs: Jobs) -> None:
    jobs.host.set(jobs_on_lease_loss="unknown")
    grant = abandoned(jobs)
    assert jobs.job(grant.id).state is State.UNKNOWN
    assert jobs.kinds(grant.id) == ["abandoned"]
    jobs.move(365 * 24 * 3600)
    assert (jobs.promote(), jobs.abandon(), jobs.purge(), jobs.claim()) == (0, 0, 0, ())


def test_the_ceiling_of_an_attempt_ends_it_whatever_its_heartbeats_said(jobs: Jobs) -> None:
    jobs.enqueue(timeout=30)
    grant = jobs.take(lease=10)
    for _ in range(3):
        jobs.move(9)
        jobs.beat(grant, lease=3600)
    assert jobs.abandon() == 0
    jobs.move(4)
    assert jobs.abandon() == 1
    assert jobs.kinds(grant.id) == ["abandoned"]


@every_outcome
def test_a_settled_attempt_is_never_abandoned(jobs: Jobs, name: str, queue: str) -> None:
    """river#1302 (scenario 3): the rescuer overwrites what was completed."""
    jobs.enqueue(queue)
    grant = jobs.take(queue, lease=10)
    state = jobs.settle(OUTCOMES[name](grant)).state
    jobs.move(11)
    assert jobs.abandon() == 0
    assert jobs.job(grant.id).state is state


def test_a_settlement_between_the_sweeps_look_and_its_write_stands(jobs: Jobs) -> None:
    """river PR #1373 (scenario 3): also where a server does not hold the locks that it gave.

    The sweep's write is run with what it had read, after the worker has completed, and after another has claimed.
    """
    from app.primitives.jobs.ops import moves, terms
    from app.primitives.jobs.store import held, work

    def stale(tx: Any, _: Any) -> list[Any]:
        (rules,) = terms.rules(tx, [("q", "t", 1)]).values()
        return [moves.abandoned(tx, row, "q", rules) for row in work.select_jobs(tx, [one.id, two.id])]

    def write(tx: Any, given: Any) -> list[int]:
        return [held.update_abandoned(tx, [move.change for move in given[0]])]

    jobs.enqueue_all(new_job(), new_job())
    one, two = jobs.claim(limit=2, lease=10)
    read = jobs.database.read(stale, None)
    jobs.settle_all(done(one), released(two))
    newer = jobs.take()
    jobs.move(3600)
    assert jobs.database.run(write, [read]) == [0]
    assert jobs.job(one.id).state is State.SUCCEEDED
    assert (jobs.job(newer.id).state, jobs.job(newer.id).fence) == (State.RUNNING, 2)


def test_abandoned_work_is_counted_and_the_next_promotion_is_told(jobs: Jobs) -> None:
    jobs.host.promotions.clear()
    abandoned(jobs)
    assert jobs.host.promotions == [pytest.approx(11, abs=1.1)]
    figures, _ = jobs.host.memory.take()
    assert sum(amount for (_, _, figure), amount in figures.items() if figure == 5) == 1


def test_a_sweep_takes_one_batch_of_the_longest_due_first(jobs: Jobs) -> None:
    jobs.enqueue_all(*(new_job() for _ in range(5)))
    late = jobs.claim(limit=2, lease=20)
    early = jobs.claim(limit=3, lease=10)
    jobs.move(30)
    assert jobs.abandon(most=3) == 3
    assert {jobs.job(grant.id).state for grant in early} == {State.SCHEDULED}
    assert {jobs.job(grant.id).state for grant in late} == {State.RUNNING}
    assert jobs.abandon(most=3) == 2
    assert jobs.abandon(most=3) == 0


@pytest.mark.parametrize("sweep", [promote, abandon, purge])
def test_a_sweep_with_nothing_to_do_does_nothing(jobs: Jobs, sweep: Callable[..., Any]) -> None:
    jobs.enqueue()
    assert jobs.database.run(sweep, [Batch(), Batch()]) == [0, 0]


# -- the database's clock decides ------------------------------------------------------------------------------------------


def test_a_process_whose_clock_is_behind_cannot_settle_or_renew_what_has_expired(
    jobs: Jobs, replica: Callable[[], Jobs]
) -> None:
    """ShedLock#231, db-scheduler#433 (scenario 17): three minutes behind, and two hold the same work."""
    jobs.enqueue_all(new_job(), new_job())
    one, two = jobs.claim(limit=2, lease=60)
    behind = replica()
    jobs.move(100)
    behind.database.clock.shift_micros = jobs.database.clock.shift_micros  # the same database time …
    behind.database.clock.adopt(0, behind.database.clock._offset - 180 * MICROS)  # type: ignore[operator]  # … seen wrongly
    assert behind.now < jobs.now - 170 * MICROS
    assert reason(behind.settle_all(done(one))[0]) == "expired"
    assert reason(behind.settle_all(failed(two))[0]) == "expired"
    from tests.primitives.jobs.test_renew import beat_of

    assert reason(behind.beat_all(beat_of(one))[0]) == "expired"
    assert jobs.abandon() == 2


def test_a_process_whose_clock_is_ahead_ends_no_lease_early(jobs: Jobs, replica: Callable[[], Jobs]) -> None:
    """k8s client-go#448 (scenario 17): three minutes ahead, and leases are lost that were held."""
    jobs.enqueue_all(new_job(), new_job())
    one, two = jobs.claim(limit=2, lease=60)
    ahead = replica()
    ahead.database.clock.adopt(0, ahead.database.clock._offset + 180 * MICROS)  # type: ignore[operator]
    assert ahead.now > jobs.now + 170 * MICROS
    ahead.abandon()
    assert jobs.kinds(one.id) == []
    assert ahead.host.promotions == []
    for outcome in jobs.settle_all(done(one), failed(two)):
        assert not isinstance(outcome, Exception)


# -- times that have come --------------------------------------------------------------------------------------------------


def test_promotion_makes_available_what_is_due_in_batches(jobs: Jobs) -> None:
    jobs.enqueue_all(*(new_job("a" if number % 2 else "b", delay=number + 1) for number in range(7)))
    jobs.move(5.5)
    jobs.woken.clear()
    assert jobs.promote(most=3) == 3
    assert jobs.promote(most=3) == 2
    assert jobs.promote(most=3) == 0
    assert sum(sum(flows.values()) for flows in jobs.woken) == 5
    assert {row.state for row in jobs.rows(jobs_table)} == {State.AVAILABLE, State.SCHEDULED}
    assert len(jobs.claim("a", "b", limit=9)) == 5


def test_a_promoted_job_keeps_the_moment_from_which_it_was_available(jobs: Jobs) -> None:
    job = jobs.enqueue(delay=10)
    other = jobs.enqueue(available_at=job.available_at - 1)
    jobs.move(100)
    jobs.promote()
    assert jobs.job(job.id).available_at == job.available_at
    assert jobs.job(job.id).due_at is None
    assert [grant.id for grant in jobs.claim(limit=2)] == [other.id, job.id]


# -- work that may be forgotten --------------------------------------------------------------------------------------------


def test_a_purge_leaves_nothing_of_an_ended_job_and_everything_of_the_others(jobs: Jobs) -> None:
    jobs.host.set(jobs_retention_seconds=100.0)
    jobs.enqueue_all(
        *(
            new_job(key=f"k{number}", correlation_id="c", parent_operation_id="p", priority=number)
            for number in range(4)
        )
    )
    ended, dead, open_, unknown = jobs.claim(limit=4, claim_id="claim-0123456789abcdef", lease=3600)
    for grant in (ended, dead, open_, unknown):
        jobs.beat(grant, lease=3600, progress=b"1")
    jobs.settle_all(done(ended, b"1"), failed(dead, retry=False), OUTCOMES["unknown"](unknown))
    jobs.move(99)
    assert jobs.purge() == 0
    jobs.move(2)
    assert jobs.purge() == 1
    kept = {open_.id, unknown.id}
    assert {row.id for row in jobs.rows(jobs_table)} == kept
    for table in (job_contents, job_keys, job_refs, job_progress):
        assert {row.job_id for row in jobs.rows(table)} == kept, table.name
    assert jobs.rows(job_results) == []
    assert {row.job_id for row in jobs.rows(job_events)} == {unknown.id}
    assert reason(jobs.settle_all(done(ended, b"1"))[0]) == "not_found"
    assert jobs.settle(done(open_)).state is State.SUCCEEDED


def test_cancelled_dead_and_succeeded_jobs_are_purged_in_batches(jobs: Jobs) -> None:
    jobs.host.set(jobs_retention_seconds=0.0)
    jobs.enqueue_all(*(new_job() for _ in range(15)))
    grants = jobs.claim(limit=15)
    for grant in grants[10:]:
        jobs.ask_to_cancel(grant.id)
    jobs.settle_all(
        *(done(grant) for grant in grants[:5]),
        *(failed(grant, retry=False) for grant in grants[5:10]),
        *(released(grant) for grant in grants[10:]),
    )
    assert {row.state for row in jobs.rows(jobs_table)} == set(ENDED)
    jobs.move(1)
    changed = []
    while not changed or changed[-1]:
        changed.append(jobs.purge(most=2))
    assert changed[:3] == [2, 2, 1]
    assert jobs.rows(jobs_table) == jobs.rows(job_events) == jobs.rows(job_contents) == []


def test_a_claim_id_is_forgotten_when_nothing_of_it_can_be_held_any_more(jobs: Jobs) -> None:
    jobs.enqueue(timeout=1000)
    grant = jobs.take(claim_id="claim-0123456789abcdef", lease=60)
    jobs.beat(grant, lease=3600)
    jobs.move(999)
    jobs.purge()
    assert jobs.claim(claim_id="claim-0123456789abcdef")[0].token == grant.token
    jobs.move(2 * 24 * 3600)
    assert jobs.purge() == 1
    assert jobs.rows(job_claims) == []
