"""Enqueue, on every engine: durable once answered, repeatable by key, in order, within the queue's limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.clock import MICROS
from app.db.database import Database
from app.errors import Refusal
from app.primitives.jobs.model import Caller, Enqueue, Enqueued, State
from app.primitives.jobs.ops.enqueue import enqueue
from app.primitives.jobs.tables import flows, job_contents, job_keys, job_refs, queues
from app.primitives.jobs.tables import jobs as jobs_table
from tests.primitives.jobs.driving import CALLER, Host, Jobs, done, failed, good, new_job, principal, reason
from tests.servers.proxy import Proxy

# -- what a job is ---------------------------------------------------------------------------------------------------------


def test_a_job_is_available_at_once_with_the_settings_where_nothing_was_said(jobs: Jobs) -> None:
    job = jobs.enqueue("q", "t", 3)
    assert jobs.job(job.id) == job
    assert (job.state, job.priority, job.attempt, job.fence) == (State.AVAILABLE, 0, 0, 0)
    assert (job.lease_losses, job.releases, job.throttles) == (0, 0, 0)
    assert job.max_attempts == jobs.host.settings.jobs_max_attempts
    assert job.timeout == jobs.host.settings.jobs_timeout_seconds * MICROS
    assert job.due_at is None
    assert abs(job.created_at - jobs.now) < 60 * MICROS
    assert job.available_at == job.created_at


def test_what_was_said_is_kept(jobs: Jobs) -> None:
    until = jobs.now + 3600 * MICROS
    caller = Caller(principal("key-1"), "request-7", "00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    (outcome,) = jobs.enqueue_all(
        new_job(
            priority=-1000,
            max_attempts=1,
            timeout=2.5,
            retry_until=until,
            payload=b"[1]",
            correlation_id="order 1 é😀",
            parent_operation_id="parent",
        ),
        caller=caller,
    )
    job = good(outcome).job
    assert (job.priority, job.max_attempts, job.timeout, job.retry_until) == (-1000, 1, 2_500_000, until)
    assert (job.correlation_id, job.parent_operation_id) == ("order 1 é😀", "parent")
    (content,) = jobs.rows(job_contents)
    assert (content.request_id, content.created_by, content.traceparent) == ("request-7", "key-1", caller.traceparent)
    assert (content.correlation_id, content.parent_operation_id) == ("order 1 é😀", "parent")
    assert len(jobs.rows(job_refs)) == 2


def test_a_delayed_job_is_scheduled_until_its_time_has_come(jobs: Jobs) -> None:
    job = jobs.enqueue(delay=30)
    assert job.state is State.SCHEDULED
    assert job.available_at == job.due_at == job.created_at + 30 * MICROS
    assert jobs.host.promotions == [pytest.approx(30)]
    assert jobs.woken == []
    jobs.move(29)
    assert jobs.promote() == 0
    assert jobs.claim() == ()
    jobs.move(1.5)
    assert jobs.promote() == 1
    assert jobs.woken == [{("q", "t", 1): 1}]
    assert jobs.take().id == job.id


def test_a_job_for_a_moment_is_scheduled_for_it_and_a_moment_that_has_passed_is_now(jobs: Jobs) -> None:
    at = jobs.now + 5 * MICROS
    later, past = jobs.enqueue(available_at=at), jobs.enqueue(available_at=1)
    assert (later.state, later.available_at) == (State.SCHEDULED, at)
    assert (past.state, past.available_at) == (State.AVAILABLE, past.created_at)
    assert jobs.enqueue(delay=0).state is State.AVAILABLE


def test_queues_and_flows_come_to_be_with_their_first_job(jobs: Jobs) -> None:
    for queue, type_, version in [
        ("a", "t", 1),
        ("a", "t", 2),
        ("b", "t", 1),
        ("a", "t", 1),
        ("A", "t", 1),
        ("a", "T", 1),
    ]:
        jobs.enqueue(queue, type_, version)
    assert {row.name for row in jobs.rows(queues)} == {"a", "A", "b"}
    assert len(jobs.rows(flows)) == 5


def test_the_desk_is_told_of_available_jobs_by_flow_and_after_the_commit_only(jobs: Jobs) -> None:
    jobs.enqueue_all(new_job("a"), new_job("a"), new_job("b"), new_job("b", delay=5))
    assert jobs.woken == [{("a", "t", 1): 2, ("b", "t", 1): 1}]
    with pytest.raises(ZeroDivisionError):
        jobs.database.run(lambda tx, given: [enqueue(tx, given), 1 // 0], [Enqueue((new_job("a"),), CALLER)])
    assert len(jobs.woken) == 1
    assert len(jobs.rows(jobs_table)) == 4


PAYLOADS = {
    "a big integer": b'{"n":123456789012345678901234567890,"d":1.10}',
    "keys twice and out of order": b'{"b":1,"a":2,"b":3}',
    "text": '{"é":"ß😀🎉","u":"\\u00e9\\ud83d\\ude00"}'.encode(),
    "an escaped NUL": b'"\\u0000"',
    "bytes that are no text": bytes(range(256)),
    "null": b"null",
    "a large one": b'"' + b"x" * 262_142 + b'"',
}


def test_payload_and_result_are_kept_byte_for_byte(jobs: Jobs) -> None:
    """Scenario 27 of faults: payload bytes, big ints, duplicate keys."""
    from app.primitives.jobs.tables import job_results

    for name, payload in PAYLOADS.items():
        jobs.enqueue(payload=payload)
        grant = jobs.take()
        assert grant.payload == payload, name
        jobs.settle(done(grant, payload))
        (row,) = jobs.rows(job_results, job_results.c.job_id == grant.id)
        assert bytes(row.result) == payload, name


# -- idempotency keys ------------------------------------------------------------------------------------------------------


def test_the_same_key_with_the_same_content_gives_the_same_job(jobs: Jobs) -> None:
    first = jobs.enqueue(key="k", payload=b"1", correlation_id="c", parent_operation_id="p")
    (again,) = jobs.enqueue_all(new_job(key="k", payload=b"1", correlation_id="c", parent_operation_id="p"))
    assert good(again) == Enqueued(first, replayed=True)
    assert len(jobs.rows(jobs_table)) == len(jobs.rows(job_contents)) == 1


def test_the_same_key_with_other_content_is_a_conflict_and_changes_nothing(jobs: Jobs) -> None:
    first = jobs.enqueue(key="k", payload=b"1")
    (refused,) = jobs.enqueue_all(new_job(key="k", payload=b"2"))
    assert reason(refused) == "idempotency_conflict"
    assert [row.id for row in jobs.rows(jobs_table)] == [first.id]


def test_a_key_gives_its_job_also_when_that_runs_or_has_ended(jobs: Jobs) -> None:
    job = jobs.enqueue(key="k")
    grant = jobs.take()
    assert good(jobs.enqueue_all(new_job(key="k"))[0]).job.state is State.RUNNING
    jobs.settle(done(grant))
    again = good(jobs.enqueue_all(new_job(key="k"))[0])
    assert (again.job.id, again.job.state, again.replayed) == (job.id, State.SUCCEEDED, True)


def test_a_key_is_free_again_once_its_job_is_purged(jobs: Jobs) -> None:
    """rails/solid_queue #689, laravel #49890, sidekiq #3240 (scenario 23): a key that outlives its job."""
    first = jobs.enqueue(key="k")
    jobs.settle(done(jobs.take()))
    jobs.move(jobs.host.settings.jobs_retention_seconds + 1)
    assert jobs.purge() == 1
    assert jobs.rows(job_keys) == []
    assert jobs.enqueue(key="k").id != first.id


KEYS = ["a", "A", "a ", " a", "é", "e\u0301", "😀", "🎉", "ß", "ss", "\0", "a\0", "x" * 255, "x" * 254]


def test_two_keys_are_the_same_only_if_their_bytes_are(jobs: Jobs) -> None:
    """Scenario 26 of faults: five keys on one database are one on another."""
    made = [jobs.enqueue(key=key, payload=key.encode()) for key in KEYS]
    assert len({job.id for job in made}) == len(KEYS)
    again = jobs.enqueue_all(*(new_job(key=key, payload=key.encode()) for key in KEYS))
    assert [good(one).job.id for one in again] == [job.id for job in made]


def test_a_key_twice_within_one_batch_is_one_job(jobs: Jobs) -> None:
    first, second, third = jobs.enqueue_all(
        new_job(key="k", payload=b"1"), new_job(key="k", payload=b"1"), new_job(key="k", payload=b"2")
    )
    assert good(first).replayed is False
    assert good(second) == Enqueued(good(first).job, replayed=True)
    assert reason(third) == "idempotency_conflict"
    assert len(jobs.rows(jobs_table)) == 1


def test_a_key_twice_within_one_transaction_of_two_requests_is_one_job(jobs: Jobs) -> None:
    (first,), (second,) = jobs.database.run(enqueue, [Enqueue((new_job(key="k"),), CALLER) for _ in range(2)])
    assert good(second) == Enqueued(good(first).job, replayed=True)
    assert len(jobs.rows(jobs_table)) == 1


def test_batches_have_mixed_results_in_the_order_sent(jobs: Jobs) -> None:
    old = jobs.enqueue("old", key="k", payload=b"1")
    outcomes = jobs.enqueue_all(
        new_job("a"),
        new_job("old", key="k", payload=b"2"),
        new_job("b"),
        new_job("old", key="k", payload=b"1"),
        new_job("c"),
    )
    told = [reason(one) if isinstance(one, Refusal) else (one.job.flow[0], one.replayed) for one in outcomes]
    assert told == [("a", False), "idempotency_conflict", ("b", False), ("old", True), ("c", False)]
    assert good(outcomes[3]).job.id == old.id
    assert len(jobs.rows(jobs_table)) == 4


def test_a_thousand_jobs_of_a_thousand_flows_are_one_commit(jobs: Jobs) -> None:
    outcomes = jobs.enqueue_all(*(new_job(f"q{number % 7}", f"t{number}") for number in range(1000)))
    assert [good(one).job.flow[1] for one in outcomes] == [f"t{number}" for number in range(1000)]
    assert len(jobs.rows(jobs_table)) == len(jobs.rows(job_contents)) == len(jobs.rows(flows)) == 1000


def test_of_processes_that_race_with_one_key_one_makes_the_job_and_all_give_it(
    jobs: Jobs, replica: Callable[[], Jobs]
) -> None:
    processes = [jobs, replica(), replica(), replica()]
    together = threading.Barrier(len(processes))

    def race(process: Jobs) -> list[Enqueued]:
        found = []
        for round_ in range(5):
            together.wait(30)
            # each round makes a new queue and flow as well, and names two keys in an order of its own
            keys = [f"{round_}-a", f"{round_}-b"] if processes.index(process) % 2 else [f"{round_}-b", f"{round_}-a"]
            outcomes = process.enqueue_all(*(new_job(f"q{round_}", key=key, payload=key.encode()) for key in keys))
            found += sorted((good(one) for one in outcomes), key=lambda one: one.job.id)
        process.database.close()
        return found

    with ThreadPoolExecutor(len(processes)) as pool:
        answers = list(pool.map(race, processes))
    assert len(jobs.rows(jobs_table)) == len(jobs.rows(job_keys)) == 10
    for given in zip(*(sorted({one.job.id for one in found}) for found in answers), strict=True):
        assert len(set(given)) == 1
    made = [one.job.id for found in answers for one in found if not one.replayed]
    assert len(made) == len(set(made)) == 10


# -- the queue's limit -----------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_what_is_over_its_limit_and_nothing_else(jobs: Jobs) -> None:
    jobs.enqueue("full", key="k")
    jobs.limit("full", 3)
    outcomes = jobs.enqueue_all(
        new_job("full", delay=60), new_job("full", "other"), new_job("full"), new_job("free"), new_job("full", key="k")
    )
    told = [reason(one) if isinstance(one, Refusal) else one.job.flow[0] for one in outcomes]
    assert told == ["full", "full", "queue_full", "free", "full"]
    refused = outcomes[2]
    assert isinstance(refused, Refusal)
    assert (refused.http_status, refused.code.retryable) == (429, True)
    assert refused.retry_after_seconds


def test_running_and_ended_jobs_do_not_fill_a_queue(jobs: Jobs) -> None:
    jobs.enqueue("full")
    jobs.limit("full", 1)
    assert reason(jobs.enqueue_all(new_job("full"))[0]) == "queue_full"
    grant = jobs.take("full")
    jobs.enqueue("full")
    jobs.settle(done(grant))
    assert reason(jobs.enqueue_all(new_job("full"))[0]) == "queue_full"


# -- answers that were lost ------------------------------------------------------------------------------------------------


def test_an_enqueue_whose_commit_got_no_answer_gives_the_same_jobs_and_doubles_nothing(jobs: Jobs) -> None:
    old = jobs.enqueue("q", key="old")
    commands = [
        Enqueue((new_job(correlation_id="c"), new_job(key="k", parent_operation_id="p"), new_job(key="old")), CALLER),
        Enqueue(
            (new_job("later", delay=9), new_job(key="k", parent_operation_id="p"), new_job(key="k", payload=b"x")),
            CALLER,
        ),
    ]
    first, again = jobs.repeat(enqueue, *commands)
    assert [[told(one) for one in answers] for answers in again] == [
        [told(one) for one in answers] for answers in first
    ]
    assert good(first[0][2]) == Enqueued(old, replayed=True)
    assert len(jobs.rows(jobs_table)) == len(jobs.rows(job_contents)) == 4
    assert len(jobs.rows(job_keys)) == 2


def told(outcome: Enqueued | Refusal) -> object:
    return reason(outcome) if isinstance(outcome, Refusal) else outcome


def test_an_enqueue_whose_commit_was_not_done_is_done_by_the_second_try(jobs: Jobs) -> None:
    commands = [Enqueue((new_job(), new_job(key="k")), CALLER)]

    def repeated(tx: object, given: object) -> object:
        tx.repeated = True  # type: ignore[attr-defined]
        return enqueue(tx, given)  # type: ignore[arg-type]

    (outcomes,) = jobs.database.run(repeated, commands)  # type: ignore[arg-type]
    assert {good(one).job.id for one in outcomes} == {row.id for row in jobs.rows(jobs_table)}
    assert not any(good(one).replayed for one in outcomes)


def test_a_lost_answer_to_a_real_commit_is_not_seen_by_the_caller(
    migrated_url: str, proxy: Proxy, open_database: Callable[[str], Database]
) -> None:
    jobs = Jobs(open_database(proxy.url(migrated_url)), Host())
    jobs.enqueue()
    proxy.lose_reply_to(b"COMMIT")
    outcomes = jobs.enqueue_all(new_job(correlation_id="c"), new_job(key="k"), new_job(key="k"))
    assert proxy.struck.is_set()
    assert [good(one).replayed for one in outcomes] == [False, False, True]
    assert [good(one).job.correlation_id for one in outcomes] == ["c", None, None]
    assert len(jobs.rows(jobs_table)) == 3
    assert jobs.database.faults == {"unknown": 1}


def test_a_lost_answer_after_the_job_was_worked_on_still_gives_its_id(jobs: Jobs) -> None:
    """Between the two tries another process may have taken the job."""
    command = Enqueue((new_job(),), CALLER)
    jobs.database.run(enqueue, [command])
    jobs.settle(failed(jobs.take(), retry=False))

    def repeated(tx: object, given: object) -> object:
        tx.repeated = True  # type: ignore[attr-defined]
        return enqueue(tx, given)  # type: ignore[arg-type]

    ((outcome,),) = jobs.database.run(repeated, [command])  # type: ignore[arg-type]
    assert good(outcome).job.id == command.jobs[0].id
    assert len(jobs.rows(jobs_table)) == 1
