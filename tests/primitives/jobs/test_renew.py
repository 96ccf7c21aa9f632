"""Renew, on every engine: extends what is held, never past the attempt's ceiling, and changes nothing for anybody else."""

from __future__ import annotations

from dataclasses import replace

from app.clock import MICROS, micros
from app.errors import Refusal
from app.primitives.jobs.model import Beat, Caller, Granted, Renew, State, new_id
from app.primitives.jobs.ops.renew import renew
from app.primitives.jobs.tables import job_progress
from app.primitives.jobs.tables import jobs as jobs_table
from tests.primitives.jobs.driving import CALLER, Jobs, done, failed, good, new_job, principal, reason, released


def beat_of(grant: Granted, lease: float = 60, progress: bytes | None = None) -> Beat:
    return Beat(grant.id, grant.token, micros(lease), progress)


def running(jobs: Jobs, *, lease: float = 60, **fields: object) -> Granted:
    jobs.enqueue(**fields)  # type: ignore[arg-type]
    return jobs.take(lease=lease)


def test_a_heartbeat_extends_the_lease_from_now(jobs: Jobs) -> None:
    grant = running(jobs)
    jobs.move(40)
    before = jobs.now
    renewed = jobs.beat(grant, lease=100)
    assert before + 100 * MICROS <= renewed.expires_at <= jobs.now + 100 * MICROS
    assert jobs.job(grant.id).due_at == renewed.expires_at
    assert (renewed.cancel_requested, renewed.cancel_reason, renewed.release_requested) == (False, None, False)
    jobs.move(90)
    assert jobs.settle(done(grant)).state is State.SUCCEEDED


def test_a_heartbeat_changes_nothing_but_the_lease(jobs: Jobs) -> None:
    grant = running(jobs)
    before = jobs.job(grant.id)
    jobs.move(1)
    renewed = jobs.beat(grant)
    assert jobs.job(grant.id) == replace(before, due_at=renewed.expires_at)


def test_a_heartbeat_never_shortens_the_lease(jobs: Jobs) -> None:
    grant = running(jobs, lease=3000)
    assert jobs.beat(grant, lease=5).expires_at == grant.expires_at
    assert jobs.job(grant.id).due_at == grant.expires_at


def test_a_heartbeat_never_goes_past_the_attempts_ceiling(jobs: Jobs) -> None:
    grant = running(jobs, timeout=100)
    ceiling = (jobs.job(grant.id).claimed_at or 0) + 100 * MICROS
    for _ in range(3):
        jobs.move(30)
        assert jobs.beat(grant, lease=3600).expires_at == ceiling
    jobs.move(11)
    (refused,) = jobs.beat_all(beat_of(grant, 3600))
    assert reason(refused) == "expired"
    assert jobs.job(grant.id).due_at == ceiling


def test_a_heartbeat_may_be_repeated(jobs: Jobs) -> None:
    grant = running(jobs)
    first, again = jobs.repeat(renew, Renew((beat_of(grant, 100, b"1"),), CALLER))
    assert good(again[0][0]).expires_at >= good(first[0][0]).expires_at
    assert jobs.job(grant.id).fence == 1


def test_a_heartbeat_learns_that_and_why_the_work_should_stop(jobs: Jobs) -> None:
    grant, other = running(jobs), running(jobs)
    jobs.ask_to_cancel(grant.id, "customer left é😀")
    renewed = jobs.beat(grant)
    assert (renewed.cancel_requested, renewed.cancel_reason) == (True, "customer left é😀")
    assert not jobs.beat(other).cancel_requested


def test_a_request_to_cancel_is_of_one_attempt_and_not_of_the_next(jobs: Jobs) -> None:
    grant = running(jobs)
    jobs.ask_to_cancel(grant.id)
    from app.primitives.jobs.model import State as States

    jobs.update(jobs_table, jobs_table.c.id == grant.id, state=int(States.AVAILABLE), due_at=None)
    assert not jobs.beat(jobs.take()).cancel_requested


# -- who may not -----------------------------------------------------------------------------------------------------------


def test_an_expired_reservation_is_refused_before_any_sweep_and_stays_expired(jobs: Jobs) -> None:
    grant = running(jobs, lease=10)
    jobs.move(11)
    jobs.host.abandonments.clear()
    assert reason(jobs.beat_all(beat_of(grant))[0]) == "expired"
    assert jobs.host.abandonments == [0]
    assert jobs.abandon() == 1
    (refused,) = jobs.beat_all(beat_of(grant))
    assert reason(refused) == "expired"
    assert isinstance(refused, Refusal)
    assert refused.extra["current_fence"] == 1


def test_each_reason_for_which_a_reservation_is_lost_is_told(jobs: Jobs) -> None:
    settled, failing, cancelled, superseded = (running(jobs, lease=10) for _ in range(4))
    jobs.settle(done(settled))
    jobs.settle(failed(failing, delay=9999))
    jobs.ask_to_cancel(cancelled.id)
    jobs.move(11)
    jobs.abandon()
    jobs.move(500)
    jobs.promote()
    assert jobs.take().id == superseded.id
    told = [
        reason(one) for one in jobs.beat_all(*(beat_of(grant) for grant in (settled, failing, cancelled, superseded)))
    ]
    assert told == ["settled", "settled", "cancelled", "superseded"]
    assert [
        reason(one)
        for one in jobs.beat_all(
            Beat(settled.id, "x", 1), Beat(superseded.id, "x" * 86, 1), Beat(new_id(), settled.token, 1)
        )
    ] == ["unknown_token", "unknown_token", "not_found"]


def test_a_worker_with_the_same_name_may_not_renew_for_another(jobs: Jobs) -> None:
    """oban-py#32, dbos-transact-py#804 (scenario 10): two workers of one name keep each other's leases alive."""
    one, two = running(jobs, lease=10), running(jobs, lease=10)
    assert reason(jobs.beat_all(Beat(one.id, two.token, micros(600)))[0]) == "unknown_token"
    assert jobs.job(one.id).due_at == one.expires_at
    assert jobs.job(two.id).due_at == two.expires_at


def test_the_token_of_one_job_does_not_renew_another_of_the_same_claim(jobs: Jobs) -> None:
    jobs.enqueue_all(new_job(), new_job(), new_job())
    one, two, three = jobs.claim(limit=3, lease=10)
    told = jobs.beat_all(Beat(one.id, two.token, micros(600)), beat_of(three, 600))
    assert reason(told[0]) == "unknown_token"
    assert jobs.job(one.id).due_at == one.expires_at
    assert jobs.job(two.id).due_at == two.expires_at
    assert jobs.job(three.id).due_at == good(told[1]).expires_at


def test_two_requests_of_one_transaction_do_not_renew_for_each_other(jobs: Jobs) -> None:
    """Whoever holds nothing must not ride on the tokens of another request of the same moment."""
    jobs.enqueue_all(new_job(), new_job())
    one, two = jobs.claim(limit=2, lease=10)
    three = running(jobs, lease=10)
    other = Renew((Beat(one.id, three.token, micros(600)), Beat(three.id, two.token, micros(600))), CALLER)
    mine = Renew((beat_of(two, 600),), CALLER)
    outcomes = jobs.database.run(renew, [other, mine])
    assert [reason(outcome) for outcome in outcomes[0]] == ["unknown_token", "unknown_token"]
    assert jobs.job(one.id).due_at == one.expires_at
    assert jobs.job(three.id).due_at == three.expires_at
    assert jobs.job(two.id).due_at == good(outcomes[1][0]).expires_at


def test_a_key_whose_patterns_do_not_cover_the_queue_renews_nothing(jobs: Jobs) -> None:
    grant = running(jobs, lease=10)
    narrow = Caller(principal("key-1", "billing.*"), "r")
    assert reason(jobs.beat_all(beat_of(grant, 600, b"1"), caller=narrow)[0]) == "forbidden"
    assert jobs.job(grant.id).due_at == grant.expires_at
    assert jobs.rows(job_progress) == []


# -- progress --------------------------------------------------------------------------------------------------------------


def test_the_newest_progress_is_kept_byte_for_byte(jobs: Jobs) -> None:
    one, two = running(jobs), running(jobs)
    jobs.beat(one, progress=b'{"done":1,"done":2}')
    jobs.beat_all(beat_of(one, progress=b"[2]"), beat_of(two, progress=b"1"), beat_of(one, progress=b'{"x":1.10}'))
    jobs.beat(one)
    assert {row.job_id: bytes(row.progress) for row in jobs.rows(job_progress)} == {one.id: b'{"x":1.10}', two.id: b"1"}


def test_progress_of_a_lost_reservation_is_dropped(jobs: Jobs) -> None:
    grant = running(jobs)
    jobs.beat(grant, progress=b"1")
    jobs.settle(released(grant))
    jobs.beat_all(beat_of(grant, progress=b"2"))
    assert [bytes(row.progress) for row in jobs.rows(job_progress)] == [b"1"]


# -- many at once ----------------------------------------------------------------------------------------------------------


def test_batches_have_mixed_results_in_the_order_sent(jobs: Jobs) -> None:
    one, two, three = (running(jobs) for _ in range(3))
    jobs.settle(done(two))
    told = jobs.beat_all(
        beat_of(three, 100), beat_of(two), Beat(new_id(), one.token, 1), beat_of(one, 200), beat_of(one, 90)
    )
    assert [reason(one_) if isinstance(one_, Refusal) else one_.id for one_ in told] == [
        three.id,
        "settled",
        "not_found",
        one.id,
        one.id,
    ]
    assert jobs.job(one.id).due_at == good(told[3]).expires_at


def test_a_thousand_heartbeats_with_leases_of_their_own_are_one_commit(jobs: Jobs) -> None:
    jobs.enqueue_all(*(new_job() for _ in range(1000)))
    grants = [grant for _ in range(10) for grant in jobs.claim(limit=100, lease=5)]
    told = jobs.beat_all(*(beat_of(grant, (60, 90, 120)[number % 3]) for number, grant in enumerate(grants)))
    assert [good(one).id for one in told] == [grant.id for grant in grants]
    on_disk = {row.id: row.due_at for row in jobs.rows(jobs_table)}
    assert all(on_disk[good(one).id] == good(one).expires_at for one in told)
    assert {round((good(one).expires_at - good(told[0]).expires_at) / MICROS) for one in told} == {0, 30, 60}
