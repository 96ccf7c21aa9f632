"""Claim, on every engine: each job to one caller that named it, in order, again for the same claim id, free while it waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from app.clock import MICROS
from app.db.database import Database
from app.primitives.jobs.model import Caller, Claimed, Granted, State
from app.primitives.jobs.ops.claim import claim, peek
from app.primitives.jobs.tables import job_claims
from app.primitives.jobs.tables import jobs as jobs_table
from tests.primitives.jobs.driving import (
    OUTCOMES,
    Host,
    Jobs,
    done,
    every_outcome,
    failed,
    good,
    new_job,
    principal,
    reason,
    released,
)
from tests.servers.proxy import Proxy

CLAIM_ID = "claim-0123456789abcdef"


def ids(grants: Sequence[Granted]) -> list[bytes]:
    return [grant.id for grant in grants]


def tokens(grants: Sequence[Granted]) -> list[tuple[bytes, str, int]]:
    return [(grant.id, grant.token, grant.fence) for grant in grants]


# -- what a worker gets ----------------------------------------------------------------------------------------------------


def test_a_claim_gives_the_job_with_a_reservation(jobs: Jobs) -> None:
    (outcome,) = jobs.enqueue_all(
        new_job(
            "q",
            "mail",
            3,
            payload=b'{"to":1}',
            priority=-4,
            max_attempts=9,
            timeout=600,
            correlation_id="c",
            parent_operation_id="p",
        ),
        caller=Caller(jobs.caller.principal, "r", "00-" + "1" * 32 + "-" + "2" * 16 + "-00"),
    )
    job = good(outcome).job
    grant = jobs.take(lease=30, worker="mailer-1")
    assert (grant.id, grant.flow, grant.payload, grant.priority) == (job.id, ("q", "mail", 3), b'{"to":1}', -4)
    assert (grant.attempt, grant.max_attempts, grant.timeout, grant.fence) == (1, 9, 600 * MICROS, 1)
    assert (grant.correlation_id, grant.parent_operation_id) == ("c", "p")
    assert grant.traceparent == "00-" + "1" * 32 + "-" + "2" * 16 + "-00"
    row = jobs.job(job.id)
    assert (row.state, row.attempt, row.fence, row.worker) == (State.RUNNING, 1, 1, "mailer-1")
    assert row.due_at == grant.expires_at == (row.claimed_at or 0) + 30 * MICROS


def test_the_database_holds_no_token(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take(claim_id=CLAIM_ID)
    held = [value for table in (jobs_table, job_claims) for row in jobs.rows(table) for value in row]
    from app import reservations

    presented = reservations.present(grant.token)
    assert presented is not None
    for secret in (presented.secret, presented.proof):
        assert not any(isinstance(value, bytes | memoryview) and secret in bytes(value) for value in held)
    assert not any(isinstance(value, str) and (grant.token in value or CLAIM_ID in value) for value in held)


def test_the_lease_ends_with_the_attempts_own_ceiling_at_the_latest(jobs: Jobs) -> None:
    jobs.enqueue(timeout=10)
    jobs.enqueue(timeout=1000)
    short, long_ = jobs.claim(limit=2, lease=60)
    row = jobs.job(short.id)
    assert short.expires_at == row.due_at == (row.claimed_at or 0) + 10 * MICROS
    assert long_.expires_at == jobs.job(long_.id).due_at == (row.claimed_at or 0) + 60 * MICROS


def test_an_empty_queue_and_a_queue_that_never_was_give_nothing(jobs: Jobs) -> None:
    assert jobs.claim("never", "seen", limit=100) == ()
    jobs.enqueue()
    jobs.take()
    assert jobs.claim() == ()
    assert jobs.claim("Q") == ()


def test_at_most_as_many_jobs_as_the_limit_says(jobs: Jobs) -> None:
    jobs.enqueue_all(*(new_job() for _ in range(7)))
    assert len(jobs.claim(limit=5)) == 5
    assert len(jobs.claim(limit=5)) == 2


def test_the_desk_and_the_sweep_are_told_of_what_was_taken(jobs: Jobs) -> None:
    jobs.enqueue(timeout=20)
    jobs.claim(lease=30, worker="w-1", handlers=[("t", (1, 2))])
    assert jobs.host.abandonments == [pytest.approx(20)]
    figures, workers = jobs.host.memory.take()
    assert sum(figures.values()) == 1
    (((worker, queue), seen),) = workers.items()
    assert (worker, queue, seen.handlers, seen.last_beat_at) == ("w-1", "q", (("t", (1, 2)),), None)


# -- order -----------------------------------------------------------------------------------------------------------------


def test_within_a_queue_priority_then_availability_then_age_decides_across_types(jobs: Jobs) -> None:
    base = jobs.now
    made: dict[str, bytes] = {}

    def add(name: str, type_: str, version: int = 1, **fields: Any) -> None:
        made[name] = jobs.enqueue("q", type_, version, **fields).id

    add("late", "a", available_at=base + 3 * MICROS)
    add("early", "b", available_at=base + 2 * MICROS)
    add("first", "c")
    add("second", "a", 2)
    add("third", "b")
    add("urgent", "a", priority=-1, available_at=base + 4 * MICROS)
    add("most urgent", "d", priority=-1000)
    add("idle", "c", priority=1000)
    add("less idle", "d", priority=1)
    jobs.move(5)
    assert jobs.promote() == 3
    order = [
        "most urgent",
        "urgent",
        "first",
        "second",
        "third",
        "early",
        "late",
        "less idle",
        "idle",
    ]
    names = {job_id: name for name, job_id in made.items()}
    assert [names[job_id] for job_id in ids(jobs.claim(limit=4))] == order[:4]
    assert [names[job_id] for job_id in ids(jobs.claim(limit=100))] == order[4:]


def test_jobs_of_one_batch_come_in_the_order_sent(jobs: Jobs) -> None:
    outcomes = jobs.enqueue_all(*(new_job("q", f"t{number % 3}") for number in range(30)))
    assert ids(jobs.claim(limit=30)) == [good(one).job.id for one in outcomes]


def test_queues_are_served_in_the_order_of_preference(jobs: Jobs) -> None:
    low = jobs.enqueue("low", priority=-1000)
    high = [jobs.enqueue("high", priority=1000).id, jobs.enqueue("high", "other", priority=1000).id]
    assert ids(jobs.claim("high", "low", limit=2)) == high
    assert ids(jobs.claim("high", "low", limit=2)) == [low.id]


def test_a_claim_is_filled_from_the_next_queue_when_the_first_has_too_little(jobs: Jobs) -> None:
    one, two, three = jobs.enqueue("b"), jobs.enqueue("a"), jobs.enqueue("c")
    assert ids(jobs.claim("a", "b", "c", limit=2)) == [two.id, one.id]
    assert ids(jobs.claim("a", "b", "c", limit=2)) == [three.id]


def test_the_earliest_of_several_claims_is_served_first(jobs: Jobs) -> None:
    made = [jobs.enqueue().id for _ in range(5)]
    outcomes = jobs.claim_all(jobs.wanted(limit=2), jobs.wanted(limit=2, worker="second"), jobs.wanted(limit=2))
    assert [ids(good(one).grants) for one in outcomes] == [made[:2], made[2:4], made[4:]]
    assert jobs.job(made[2]).worker == "second"
    assert len({grant.token for one in outcomes for grant in good(one).grants}) == 5


def test_claims_with_other_leases_and_workers_keep_their_own_within_one_transaction(jobs: Jobs) -> None:
    for _ in range(4):
        jobs.enqueue()
    outcomes = jobs.claim_all(
        jobs.wanted(limit=2, lease=10, worker="one"), jobs.wanted(limit=2, lease=99, worker="two")
    )
    for outcome, seconds, worker in zip(outcomes, (10, 99), ("one", "two"), strict=True):
        for grant in good(outcome).grants:
            row = jobs.job(grant.id)
            assert (row.worker, row.due_at) == (worker, (row.claimed_at or 0) + seconds * MICROS)
            assert grant.expires_at == row.due_at


# -- handlers, paused queues, head of the line -----------------------------------------------------------------------------


def test_a_worker_is_never_given_a_type_or_version_that_it_did_not_name(jobs: Jobs) -> None:
    """river#1105 (scenario 25): a worker without the handler poisons the job."""
    for type_, version in [("mail", 1), ("mail", 2), ("print", 1), ("Mail", 1), ("other", 1)]:
        jobs.enqueue("q", type_, version)
    given = jobs.claim(limit=100, handlers=[("mail", (2, 3)), ("print", (1,))])
    assert [grant.flow for grant in given] == [("q", "mail", 2), ("q", "print", 1)]
    assert jobs.claim(limit=100, handlers=[("unknown", (1,))]) == ()
    assert [grant.flow[1:] for grant in jobs.claim(limit=100)] == [("mail", 1), ("Mail", 1), ("other", 1)]


def test_a_type_that_nobody_handles_does_not_hide_the_others(jobs: Jobs) -> None:
    jobs.enqueue_all(*(new_job("q", "stuck", priority=-5) for _ in range(600)))
    wanted = jobs.enqueue("q", "mine", priority=5)
    assert ids(jobs.claim(limit=1, handlers=[("mine", (1,))])) == [wanted.id]


def test_jobs_in_backoff_at_the_head_do_not_hide_a_fresh_one(jobs: Jobs) -> None:
    """yii3-outbox, river #1318 (scenario 31): 100 failing messages at the head starve the fresh one behind them."""
    jobs.enqueue_all(*(new_job(priority=-1) for _ in range(100)))
    for outcome in jobs.settle_all(*(failed(grant) for grant in jobs.claim(limit=100))):
        assert good(outcome).state is State.SCHEDULED
    fresh = jobs.enqueue()
    assert ids(jobs.claim(limit=100)) == [fresh.id]


def test_a_claim_across_very_many_flows_finds_its_job(jobs: Jobs) -> None:
    """A queue with more types than one statement may have parts."""
    jobs.enqueue_all(*(new_job("q", f"t{number}") for number in range(700)))
    best = jobs.enqueue("q", "t699", priority=-1)
    given = jobs.claim(limit=3)
    assert given[0].id == best.id
    assert [grant.flow[1] for grant in given[1:]] == ["t0", "t1"]


def test_a_paused_queue_gives_nothing_and_the_others_do(jobs: Jobs, replica: Callable[[], Jobs]) -> None:
    other = replica()
    held, free = jobs.enqueue("held"), jobs.enqueue("free")
    other.enqueue("held")
    jobs.pause("held")
    for process in (jobs, other):
        assert process.claim("held") == ()
        assert process.database.read(peek, ["held", "free"]) == [("free", "t", 1)]
    assert ids(other.claim("held", "free", limit=9)) == [free.id]
    from app.primitives.jobs.tables import queues

    jobs.update(queues, queues.c.name == "held", paused_at=None)
    assert held.id in ids(other.claim("held", limit=9))


def test_work_of_a_paused_queue_may_still_be_settled(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take()
    jobs.pause("q")
    jobs.beat(grant)
    assert jobs.settle(done(grant)).state is State.SUCCEEDED


def test_another_process_finds_flows_that_it_never_saw(jobs: Jobs, replica: Callable[[], Jobs]) -> None:
    other = replica()
    assert other.claim("q", "new") == ()
    job = jobs.enqueue("new", "brand.new", 7)
    assert other.database.read(peek, ["q", "new"]) == [("new", "brand.new", 7)]
    assert ids(other.claim("q", "new")) == [job.id]


# -- the same claim again --------------------------------------------------------------------------------------------------


def test_the_same_claim_again_gives_the_same_grants_with_the_same_tokens(
    jobs: Jobs, replica: Callable[[], Jobs]
) -> None:
    """camunda#59354, #3631 (scenario 4): claim committed, response lost, job invisible for the whole lease."""
    jobs.enqueue_all(*(new_job(payload=b"%d" % number) for number in range(5)))
    first = jobs.claim(limit=3, claim_id=CLAIM_ID)
    jobs.move(5)
    for process in (jobs, replica()):
        process.database.clock.shift_micros = jobs.database.clock.shift_micros
        (again,) = process.claim_all(process.wanted(limit=3, claim_id=CLAIM_ID))
        assert good(again) == Claimed(first, replayed=True)
    assert len(jobs.claim(limit=9, claim_id="another-claim-id-000")) == 2


def test_after_some_were_settled_only_those_that_are_held_come_again(jobs: Jobs) -> None:
    jobs.enqueue_all(*(new_job() for _ in range(4)))
    first = jobs.claim(limit=4, claim_id=CLAIM_ID)
    jobs.settle_all(done(first[0]), released(first[2]))
    jobs.beat(first[3], lease=200)
    again = jobs.claim(limit=4, claim_id=CLAIM_ID)
    assert tokens(again) == tokens((first[1], first[3]))
    assert again[1].expires_at > first[3].expires_at


@every_outcome
def test_a_claim_id_is_free_again_when_all_its_grants_have_ended(jobs: Jobs, name: str, queue: str) -> None:
    jobs.enqueue(queue)
    first = jobs.take(queue, claim_id=CLAIM_ID + queue)
    jobs.settle(OUTCOMES[name](first))
    other = jobs.enqueue(queue, priority=-5)
    second = jobs.take(queue, claim_id=CLAIM_ID + queue)
    assert second.id == other.id
    assert second.token != first.token
    assert tokens(jobs.claim(queue, claim_id=CLAIM_ID + queue)) == tokens((second,))


def test_a_claim_id_is_free_again_when_its_leases_have_ended_also_before_a_sweep(jobs: Jobs) -> None:
    lost = jobs.enqueue()
    jobs.take(claim_id=CLAIM_ID, lease=10)
    jobs.move(11)
    other = jobs.enqueue()
    assert ids(jobs.claim(claim_id=CLAIM_ID, limit=5)) == [other.id]
    jobs.abandon()
    assert jobs.job(lost.id).state is State.SCHEDULED


def test_a_claim_id_is_bound_to_its_api_key(jobs: Jobs) -> None:
    jobs.enqueue_all(new_job(), new_job())
    mine, other = Caller(principal("key-1"), "r"), Caller(principal("key-2"), "r")
    first = jobs.take(claim_id=CLAIM_ID, caller=mine)
    theirs = jobs.take(claim_id=CLAIM_ID, caller=other)
    assert theirs.id != first.id
    assert tokens(jobs.claim(claim_id=CLAIM_ID, caller=mine)) == tokens((first,))
    assert tokens(jobs.claim(claim_id=CLAIM_ID, caller=other)) == tokens((theirs,))


def test_a_claim_that_brought_nothing_is_not_remembered(jobs: Jobs) -> None:
    assert jobs.claim(claim_id=CLAIM_ID) == ()
    assert jobs.rows(job_claims) == []
    job = jobs.enqueue()
    assert jobs.take(claim_id=CLAIM_ID).id == job.id


def test_the_same_claim_twice_within_one_transaction_is_one_claim(jobs: Jobs) -> None:
    jobs.enqueue_all(new_job(), new_job())
    command = jobs.wanted(claim_id=CLAIM_ID)
    first, second = jobs.claim_all(command, command)
    assert len(good(first).grants) == 1
    assert good(second).grants == ()
    first, second = jobs.claim_all(command, command)
    assert good(first).replayed
    assert good(second).grants == ()


def test_of_two_processes_that_repeat_one_claim_at_once_both_give_the_same(
    jobs: Jobs, replica: Callable[[], Jobs]
) -> None:
    """Both began before either had committed: the second fails as a duplicate, runs again, and replays."""
    other = replica()
    jobs.enqueue_all(*(new_job() for _ in range(4)))
    command = jobs.wanted(limit=2, claim_id=CLAIM_ID)
    inner: list[Any] = []
    tries: list[int] = []

    def op(tx: Any, commands: Any) -> Any:
        outcomes = claim(tx, commands)
        tries.append(1)
        if not tx.dialect.single_writer and len(tries) == 1:
            # what this one has locked is skipped there; then there is a claim under this id that this one does not know
            tx.conn.rollback()
            tx.conn.begin()
            inner.extend(other.claim_all(command))
            raise_duplicate(tx)
        return outcomes

    (outcome,) = jobs.database.run(op, [command])
    if inner:
        assert good(outcome) == Claimed(good(inner[0]).grants, replayed=True)
        assert jobs.database.faults == {"duplicate": 1}
    assert len([row for row in jobs.rows(jobs_table) if row.state == State.RUNNING]) == 2


def raise_duplicate(tx: Any) -> None:
    """Fail as the INSERT of a claim id does that somebody else has made."""
    (row,) = [dict(row._mapping) for row in tx.conn.execute(job_claims.select())]
    tx.conn.execute(job_claims.insert().values(**row))


# -- answers that were lost ------------------------------------------------------------------------------------------------


def test_a_claim_whose_commit_got_no_answer_gives_the_same_grants_and_takes_nothing_more(jobs: Jobs) -> None:
    jobs.enqueue_all(*(new_job(payload=b"%d" % number) for number in range(9)))
    old = jobs.take(claim_id="replayed-claim-id-00")
    first, again = jobs.repeat(
        claim,
        jobs.wanted(limit=2),
        jobs.wanted(limit=3, claim_id=CLAIM_ID),
        jobs.wanted("empty"),
        jobs.wanted(claim_id="replayed-claim-id-00"),
        jobs.wanted(claim_id=CLAIM_ID),
    )
    assert again == first
    assert tokens(good(first[3]).grants) == tokens((old,))
    assert good(first[4]).grants == ()
    assert [row.fence for row in jobs.rows(jobs_table)].count(1) == 6
    assert all(row.fence <= 1 for row in jobs.rows(jobs_table))
    for grant in good(first[0]).grants:
        assert jobs.settle(done(grant)).state is State.SUCCEEDED


def test_a_claim_that_found_nothing_may_run_again_and_find_something(jobs: Jobs) -> None:
    first, again = jobs.repeat(claim, jobs.wanted())
    assert first == again == [Claimed()]


def test_a_claim_whose_commit_was_not_done_is_done_by_the_second_try(jobs: Jobs) -> None:
    job = jobs.enqueue()

    def op(tx: Any, commands: Any) -> Any:
        tx.conn.begin_nested()
        claim(tx, commands)
        tx.conn.get_nested_transaction().rollback()
        tx.repeated = True
        return claim(tx, commands)

    (outcome,) = jobs.database.run(op, [jobs.wanted(claim_id=CLAIM_ID)])
    (grant,) = good(outcome).grants
    assert (grant.id, grant.fence, jobs.job(job.id).fence) == (job.id, 1, 1)
    assert jobs.settle(done(grant)).state is State.SUCCEEDED


def test_a_lost_answer_to_a_real_commit_of_a_claim_is_not_seen_by_the_caller(
    migrated_url: str, proxy: Proxy, open_database: Callable[[str], Database]
) -> None:
    jobs = Jobs(open_database(proxy.url(migrated_url)), Host())
    jobs.enqueue_all(*(new_job() for _ in range(4)))
    proxy.lose_reply_to(b"COMMIT")
    given = jobs.claim(limit=3)
    assert proxy.struck.is_set()
    assert len(given) == 3
    assert {row.fence for row in jobs.rows(jobs_table)} == {0, 1}
    proxy.lose_reply_to(b"COMMIT")
    outcomes = jobs.settle_all(*(done(grant) for grant in given))
    assert [good(one).state for one in outcomes] == [State.SUCCEEDED] * 3
    assert jobs.database.faults == {"unknown": 2}


# -- give back what reached nobody -----------------------------------------------------------------------------------------


def test_a_grant_that_reached_nobody_is_given_back_without_cost(jobs: Jobs) -> None:
    first, second = jobs.enqueue(), jobs.enqueue()
    given = jobs.claim(limit=2, claim_id=CLAIM_ID)
    jobs.woken.clear()
    jobs.give_back(*given)
    assert jobs.woken == [{("q", "t", 1): 2}]
    row = jobs.job(first.id)
    assert (row.state, row.attempt, row.fence, row.releases, row.lease_losses) == (State.AVAILABLE, 0, 1, 0, 0)
    assert reason(jobs.settle_all(done(given[0]))[0]) == "expired"
    again = jobs.claim(limit=2)
    assert ids(again) == [first.id, second.id]
    assert [(grant.attempt, grant.fence) for grant in again] == [(1, 2), (1, 2)]


def test_a_grant_that_was_settled_after_all_or_given_to_another_is_not_given_back(jobs: Jobs) -> None:
    jobs.enqueue_all(new_job(), new_job())
    first, second = jobs.claim(limit=2)
    jobs.settle(done(first))
    jobs.settle(released(second))
    newer = jobs.take()
    jobs.give_back(first, second)
    assert jobs.job(first.id).state is State.SUCCEEDED
    assert (jobs.job(second.id).state, jobs.job(second.id).fence) == (State.RUNNING, 2)
    assert jobs.settle(done(newer)).state is State.SUCCEEDED


def test_a_grant_that_is_given_back_after_a_request_to_cancel_is_cancelled(jobs: Jobs) -> None:
    jobs.enqueue()
    grant = jobs.take()
    jobs.ask_to_cancel(grant.id)
    jobs.give_back(grant)
    assert jobs.job(grant.id).state is State.CANCELLED
    assert jobs.kinds(grant.id) == ["cancel_requested", "cancelled"]
