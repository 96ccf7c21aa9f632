"""Unique and debounce keys, on every engine: one job of a type holds a key, and what an enqueue makes of the holder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from app.clock import micros
from app.errors import Refusal
from app.primitives.jobs.model import (
    Caller,
    Control,
    Enqueue,
    Filter,
    Granted,
    State,
    Unique,
    Until,
    Verdict,
    id_text,
    unique_digest,
)
from app.primitives.jobs.ops import bulk, control
from app.primitives.jobs.ops.enqueue import enqueue
from app.primitives.jobs.store import work
from app.primitives.jobs.tables import job_contents, job_keys, job_refs, job_uniques
from app.primitives.jobs.tables import jobs as jobs_table
from tests.primitives.jobs.driving import Jobs, done, failed, good, new_job, principal, released, unknown
from tests.primitives.jobs.keyed import (
    FINISHED,
    KEEP,
    REJECT,
    REPLACE,
    STARTED,
    check_keys,
    debounce,
    holder_of,
    send,
    sent,
    slot,
    states,
    try_to_send,
    unique,
)

K = unique("k")


def operate(jobs: Jobs, op: Callable[..., Any], job_id: bytes, **told: Any) -> Any:
    (outcome,) = jobs.database.run(op, [Control(job_id, jobs.caller, reason="because", **told)])
    return outcome


def refused(outcome: Any, job_id: bytes, state: State) -> None:
    assert isinstance(outcome, Refusal), outcome
    assert outcome.code.name == "unique_conflict"
    assert outcome.extra == {"job_id": id_text(job_id), "state": state.text}


def payload_of(jobs: Jobs, job_id: bytes) -> bytes:
    (row,) = jobs.rows(job_contents, job_contents.c.job_id == job_id)
    return bytes(row.payload)


# -- keep, reject ----------------------------------------------------------------------------------------------------------


def test_the_second_enqueue_of_a_key_is_given_the_job_of_the_first(jobs: Jobs) -> None:
    first = send(jobs, unique=K, payload=b"1", correlation_id="c-1")
    again = send(jobs, unique=K, payload=b"2", correlation_id="c-2")
    assert (first.deduplicated, again.deduplicated, again.replayed) == (False, True, False)
    assert (again.job.id, again.job.correlation_id) == (first.job.id, "c-1")
    assert payload_of(jobs, first.job.id) == b"1"
    assert len(jobs.rows(jobs_table)) == 1


@pytest.mark.parametrize("begin", [lambda jobs: jobs.take(), lambda jobs: jobs.settle(failed(jobs.take()))])
def test_a_holder_that_runs_or_waits_for_a_retry_is_kept_too(jobs: Jobs, begin: Callable[[Jobs], Any]) -> None:
    first = send(jobs, unique=K).job
    begin(jobs)
    assert send(jobs, unique=K).job.id == first.id


def test_reject_names_the_holder_and_its_state(jobs: Jobs) -> None:
    first = send(jobs, unique=K).job
    refused(try_to_send(jobs, unique=unique("k", REJECT)), first.id, State.AVAILABLE)
    jobs.take()
    refused(try_to_send(jobs, unique=unique("k", REJECT)), first.id, State.RUNNING)


def test_a_key_counts_within_its_type_across_queues_and_versions(jobs: Jobs) -> None:
    """An enqueue of one type is never swallowed by a job of another type."""
    first = send(jobs, "q", "t", unique=K).job
    assert send(jobs, "elsewhere", "t", 2, unique=K).job.id == first.id
    other = send(jobs, "q", "u", unique=unique("k", type_="u"))
    assert not other.deduplicated


def test_keys_are_the_same_only_if_their_bytes_are(jobs: Jobs) -> None:
    """Fault 26: no collation, no trimming, no normal form makes two keys one."""
    names = ["a", "A", "a ", "é", "e\u0301", "😀", "🎉", "ß", "ss", "\0", "x" * 255]
    made = {send(jobs, unique=unique(name)).job.id for name in names}
    assert len(made) == len(names)
    assert {send(jobs, unique=unique(name)).job.id for name in names} == made
    assert {bytes(row.name).decode() for row in jobs.rows(job_uniques)} == set(names)


def test_a_key_cannot_be_taken_for_another_type_and_key() -> None:
    assert (
        len(
            {unique_digest("ab", b"c"), unique_digest("a", b"bc"), unique_digest("a", b"b\0c"), unique_digest("a", b"")}
        )
        == 4
    )
    assert unique_digest("t", b"k") != hashlib.sha256(b"k").digest()


def test_within_one_unit_the_second_enqueue_of_a_key_sees_the_first(jobs: Jobs) -> None:
    command = [Enqueue((new_job(unique=K, payload=body),), jobs.caller) for body in (b"1", b"2", b"3")]
    answers = [outcomes[0] for outcomes in jobs.database.run(enqueue, command)]
    assert [answer.deduplicated for answer in answers] == [False, True, True]
    assert len({answer.job.id for answer in answers}) == 1
    one, two, three = jobs.enqueue_all(
        new_job(unique=unique("m", REPLACE), payload=b"1"),
        new_job(unique=unique("m", REPLACE), payload=b"2", priority=5, concurrency=slot()),
        new_job(unique=unique("m", REJECT), payload=b"3"),
    )
    assert good(one).job.id == good(two).job.id
    refused(three, good(one).job.id, State.AVAILABLE)
    assert payload_of(jobs, good(one).job.id) == b"2"
    assert jobs.job(good(one).job.id).priority == 5
    check_keys(jobs)


# -- replace ---------------------------------------------------------------------------------------------------------------


def test_replace_gives_the_holder_everything_of_the_new_enqueue(jobs: Jobs) -> None:
    first = send(jobs, unique=K, payload=b"1", correlation_id="c-1", parent_operation_id="p-1").job
    caller = Caller(principal("k-2"), "request-2", "00-trace")
    (outcome,) = jobs.enqueue_all(
        new_job(
            "other", "t", 3, unique=unique("k", REPLACE, STARTED), payload=b"2", priority=7, delay=60, max_attempts=2,
            timeout=99, retry_until=jobs.now + 10**9, correlation_id="c-2",
        ),
        caller=caller,
    )  # fmt: skip
    answer = good(outcome)
    assert (answer.job.id, answer.deduplicated) == (first.id, True)
    job = jobs.job(first.id)
    assert (job.flow, job.priority, job.state, job.max_attempts, job.timeout) == (
        ("other", "t", 3),
        7,
        State.SCHEDULED,
        2,
        99_000_000,
    )
    assert (job.created_at, job.retry_until) == (first.created_at, answer.job.retry_until)
    (content,) = jobs.rows(job_contents)
    assert (content.payload, content.correlation_id, content.parent_operation_id) == (b"2", "c-2", None)
    assert (content.created_by, content.request_id, content.traceparent) == ("k-2", "request-2", "00-trace")
    assert len(jobs.rows(job_refs)) == 1
    (event,) = jobs.events(first.id)
    assert (event.kind, event.actor, event.request_id) == ("replaced", "k-2", "request-2")
    jobs.move(61)
    jobs.promote()
    assert jobs.take("other").payload == b"2"
    assert not jobs.claim("q")
    assert not send(jobs, unique=K).deduplicated, "until=started came with the contents"


@pytest.mark.parametrize(
    ("begin", "state"),
    [
        (lambda jobs: jobs.take(), State.RUNNING),
        (lambda jobs: jobs.settle(failed(jobs.take())), State.SCHEDULED),
        (lambda jobs: jobs.settle(failed(jobs.take(), delay=0)), State.AVAILABLE),
        (lambda jobs: jobs.settle(unknown(jobs.take())), State.UNKNOWN),
    ],
)
def test_a_holder_that_was_started_cannot_be_replaced(jobs: Jobs, begin: Callable[[Jobs], Any], state: State) -> None:
    first = send(jobs, unique=K, payload=b"1").job
    begin(jobs)
    outcome = try_to_send(jobs, unique=unique("k", REPLACE), payload=b"2")
    refused(outcome, first.id, state)
    assert "cannot be replaced" in outcome.detail
    assert payload_of(jobs, first.id) == b"1"


def test_a_holder_that_was_given_back_unworked_can_still_be_replaced(jobs: Jobs) -> None:
    first = send(jobs, unique=K, payload=b"1").job
    jobs.settle(released(jobs.take()))
    assert send(jobs, unique=unique("k", REPLACE), payload=b"2").job.id == first.id
    assert jobs.take().payload == b"2"


def test_a_replaced_job_that_moved_is_given_to_no_one_who_does_not_name_its_flow(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a claim's look at the heads and its lock, the job goes to a queue that the caller did not name."""
    first = send(jobs, "q", "t", unique=K).job
    plain, away = jobs.enqueue("q", "t", 2), jobs.enqueue("away", "t")
    look = work.select_heads
    (flow_id,) = (row.flow_id for row in jobs.rows(jobs_table, jobs_table.c.id == away.id))

    def moved(tx: Any, *given: Any) -> Any:
        heads = look(tx, *given)
        tx.conn.execute(jobs_table.update().where(jobs_table.c.id == first.id).values(flow_id=flow_id))
        return heads

    monkeypatch.setattr(work, "select_heads", moved)
    assert [grant.id for grant in jobs.claim("q", limit=5)] == [plain.id]
    assert jobs.job(first.id).state is State.AVAILABLE


def test_the_limit_of_a_queue_holds_for_a_job_that_replace_brings_there(jobs: Jobs) -> None:
    send(jobs, "full", "x")
    jobs.limit("full", 1)
    first = send(jobs, "q", "t", unique=K).job
    outcome = try_to_send(jobs, "full", "t", unique=unique("k", REPLACE))
    assert outcome.code.name == "queue_full"
    assert jobs.job(first.id).flow == ("q", "t", 1)


def test_a_holder_in_a_queue_that_the_caller_may_not_see_is_not_told(jobs: Jobs) -> None:
    first = send(jobs, "secret", "t", unique=K).job
    caller = Caller(principal("k-2", "open"), "request-2")
    for conflict in (KEEP, REPLACE, REJECT):
        (outcome,) = jobs.enqueue_all(new_job("open", "t", unique=unique("k", conflict)), caller=caller)
        assert (outcome.code.name, outcome.extra) == ("unique_conflict", {})
        assert id_text(first.id) not in outcome.detail


# -- when it is free again -------------------------------------------------------------------------------------------------

ENDS: dict[str, Callable[[Jobs, Granted], Any]] = {
    "success": lambda jobs, grant: jobs.settle(done(grant)),
    "failure": lambda jobs, grant: jobs.settle(failed(grant, retry=False)),
    "cancel, then fail": lambda jobs, grant: (jobs.ask_to_cancel(grant.id), jobs.settle(failed(grant))),
    "cancel, then give back": lambda jobs, grant: (jobs.ask_to_cancel(grant.id), jobs.give_back(grant)),
    "cancel, then lease loss": lambda jobs, grant: (jobs.ask_to_cancel(grant.id), jobs.move(61), jobs.abandon()),
    "lease loss": lambda jobs, grant: (jobs.host.set(jobs_max_lease_losses=1), jobs.move(61), jobs.abandon()),
    "verdict succeeded": lambda jobs, grant: (jobs.settle(unknown(grant)), judge(jobs, grant, Verdict.SUCCEEDED)),
    "verdict dead": lambda jobs, grant: (jobs.settle(unknown(grant)), judge(jobs, grant, Verdict.DEAD)),
}


def judge(jobs: Jobs, grant: Granted, verdict: Verdict) -> None:
    good(operate(jobs, control.reconcile, grant.id, verdict=verdict, evidence=b"1"))


@pytest.mark.parametrize("name", list(ENDS))
def test_a_key_is_free_after_every_end_and_gone_with_its_job(jobs: Jobs, name: str) -> None:
    """laravel #49890/#54000, PR #47765; sidekiq#3240, #6890 (scenario 23): uniqueness outlives the job."""
    first = send(jobs, unique=K).job
    grant = jobs.take()
    assert holder_of(jobs, K) == first.id
    ENDS[name](jobs, grant)
    assert holder_of(jobs, K) is None
    check_keys(jobs)
    second = send(jobs, unique=K)
    assert not second.deduplicated
    jobs.move(90 * 86_400)
    jobs.purge()
    assert {bytes(row.job_id) for row in jobs.rows(job_uniques)} == {second.job.id}
    check_keys(jobs)


@pytest.mark.parametrize("delay", [None, 60])
def test_cancelling_a_waiting_job_frees_its_key(jobs: Jobs, delay: float | None) -> None:
    """Scenario 23, by an operator."""
    first = send(jobs, unique=K, delay=delay).job
    good(operate(jobs, control.cancel, first.id))
    assert holder_of(jobs, K) is None
    assert not send(jobs, unique=K).deduplicated


def test_bulk_cancel_and_bulk_purge_free_keys(jobs: Jobs) -> None:
    """Scenario 23, for many at once."""
    for name in "abc":
        send(jobs, unique=unique(name))
    change(jobs, bulk.Action.CANCEL)
    assert [row.holding for row in jobs.rows(job_uniques)] == [None] * 3
    change(jobs, bulk.Action.PURGE)
    assert jobs.rows(job_uniques) == []


def change(jobs: Jobs, action: bulk.Action) -> bulk.Step:
    (step,) = jobs.database.run(bulk.change, [bulk.Bulk(action, Filter(type="t"), jobs.caller, "why", 100)])
    done_: bulk.Step = step
    return done_


def test_an_unknown_job_holds_its_key_and_a_retry_by_verdict_too(jobs: Jobs) -> None:
    first = send(jobs, unique=K).job
    jobs.settle(unknown(jobs.take()))
    assert send(jobs, unique=K).job.id == first.id
    good(operate(jobs, control.reconcile, first.id, verdict=Verdict.RETRY, evidence=b"1"))
    assert send(jobs, unique=K).job.id == first.id
    check_keys(jobs)


def test_until_started_frees_the_key_with_the_first_claim(jobs: Jobs) -> None:
    key = unique("k", until=STARTED)
    first = send(jobs, unique=key).job
    assert send(jobs, unique=key).job.id == first.id
    grant = jobs.take()
    second = send(jobs, unique=key)
    assert not second.deduplicated
    jobs.settle(failed(grant, delay=0))
    assert send(jobs, unique=key).job.id == second.job.id, "a retry takes nothing from who came after"
    check_keys(jobs)


# -- an operator's retry ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("until", list(Until))
def test_a_retried_job_takes_its_key_again(jobs: Jobs, until: Until) -> None:
    key = unique("k", until=until)
    first = send(jobs, unique=key).job
    jobs.settle(failed(jobs.take(), retry=False))
    good(operate(jobs, control.retry, first.id))
    assert send(jobs, unique=key).job.id == first.id
    check_keys(jobs)


def test_a_retry_is_refused_while_another_job_holds_the_key(jobs: Jobs) -> None:
    first = send(jobs, unique=K).job
    jobs.settle(failed(jobs.take(), retry=False))
    second = send(jobs, unique=K).job
    refused(operate(jobs, control.retry, first.id), second.id, State.AVAILABLE)
    assert jobs.job(first.id).state is State.DEAD
    assert jobs.kinds(first.id) == ["failed", "dead"]


def test_bulk_retry_leaves_out_jobs_whose_key_is_held(jobs: Jobs) -> None:
    dead = []
    for _ in range(3):
        dead.append(send(jobs, unique=K).job.id)
        jobs.settle(failed(jobs.take(), retry=False))
    free = send(jobs, unique=unique("other")).job.id
    jobs.settle(failed(jobs.take(), retry=False))
    done_ = change(jobs, bulk.Action.RETRY)
    assert (done_.matched, done_.changed) == (4, 2)
    assert states(jobs) == {dead[0]: State.AVAILABLE, dead[1]: State.DEAD, dead[2]: State.DEAD, free: State.AVAILABLE}
    assert change(jobs, bulk.Action.RETRY).changed == 0
    check_keys(jobs)


# -- together with an idempotency key --------------------------------------------------------------------------------------


def test_an_idempotency_key_that_was_deduplicated_answers_the_same_again(jobs: Jobs) -> None:
    first = send(jobs, unique=K, payload=b"1", correlation_id="c-1").job
    again = send(jobs, unique=K, payload=b"2", key="i")
    assert (again.job.id, again.deduplicated, again.replayed) == (first.id, True, False)
    jobs.settle(done(jobs.take()))
    repeat = send(jobs, unique=K, payload=b"2", key="i")
    assert (repeat.job.id, repeat.deduplicated, repeat.replayed) == (first.id, True, True)
    assert (repeat.job.state, repeat.job.correlation_id) == (State.SUCCEEDED, "c-1")
    assert try_to_send(jobs, unique=K, payload=b"3", key="i").code.name == "idempotency_conflict"
    jobs.move(90 * 86_400)
    jobs.purge()
    assert jobs.rows(job_keys) == []
    assert not send(jobs, unique=K, payload=b"2", key="i").deduplicated


def test_the_key_of_the_first_enqueue_stays_with_a_replaced_job(jobs: Jobs) -> None:
    first = send(jobs, unique=K, payload=b"1", key="one").job
    send(jobs, unique=unique("k", REPLACE), payload=b"2", key="two")
    for name, body, deduplicated in (("one", b"1", False), ("two", b"2", True)):
        repeat = send(jobs, unique=K, payload=body, key=name)
        assert (repeat.job.id, repeat.replayed, repeat.deduplicated) == (first.id, True, deduplicated)


# -- a COMMIT without an answer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "i"])
@pytest.mark.parametrize("conflict", [KEEP, REPLACE])
def test_a_lost_commit_answer_is_answered_as_the_first_try_would_have_been(
    jobs: Jobs, key: str | None, conflict: Any
) -> None:
    first = send(jobs, unique=K, payload=b"1").job
    new = new_job(unique=unique("k", conflict), payload=b"2", key=key)
    one, two = jobs.repeat(enqueue, Enqueue((new,), jobs.caller))
    assert one == two
    assert (good(two[0][0]).job.id, good(two[0][0]).deduplicated) == (first.id, True)
    assert jobs.kinds(first.id) == (["replaced"] if conflict is REPLACE else [])


def test_after_a_lost_commit_answer_the_newest_of_a_unit_stays_the_newest(jobs: Jobs) -> None:
    news = [new_job(debounce=debounce("k"), payload=body) for body in (b"1", b"2", b"3")]
    one, two = jobs.repeat(enqueue, *(Enqueue((new,), jobs.caller) for new in news))
    assert [answers[0].deduplicated for answers in one] == [answers[0].deduplicated for answers in two]
    (row,) = jobs.rows(job_contents)
    assert row.payload == b"3"


# -- debounce --------------------------------------------------------------------------------------------------------------


def test_debounced_enqueues_are_one_run_with_the_newest_content(jobs: Jobs) -> None:
    first = send(jobs, debounce=debounce("k"), payload=b"1").job
    assert (first.state, first.available_at) == (State.SCHEDULED, first.created_at + 10_000_000)
    jobs.move(6)
    second = send(jobs, debounce=debounce("k"), payload=b"2", priority=3)
    assert (second.job.id, second.deduplicated) == (first.id, True)
    assert second.job.available_at > first.available_at
    jobs.move(6)
    assert jobs.promote() == 0, "it was put off"
    jobs.move(5)
    assert jobs.promote() == 1
    grant = jobs.take()
    assert (grant.id, grant.payload, grant.priority) == (first.id, b"2", 3)
    assert jobs.events(first.id) == []


def test_a_debounced_job_is_put_off_to_the_end_of_its_window_at_most(jobs: Jobs) -> None:
    first = send(jobs, debounce=debounce("k", 10, 25)).job
    latest = first.created_at + 25_000_000
    for _ in range(6):
        jobs.move(4)
        answer = send(jobs, debounce=debounce("k", 10, 25)).job
        assert answer.available_at <= latest
    assert (answer.available_at, answer.state) == (latest, State.SCHEDULED)
    jobs.move(4)
    late = send(jobs, debounce=debounce("k", 10, 25), payload=b"last").job
    assert (late.id, late.state) == (first.id, State.AVAILABLE)
    assert jobs.take().payload == b"last"


def test_an_overdue_debounced_job_keeps_its_place_however_often_it_is_enqueued_again(jobs: Jobs) -> None:
    """Or a burst that never ends would send it to the back of a busy queue for ever."""
    first = send(jobs, debounce=debounce("k", 10, 25), payload=b"1").job
    jobs.move(30)
    jobs.promote()
    others = [jobs.enqueue(), jobs.enqueue()]
    jobs.move(5)
    again = send(jobs, debounce=debounce("k", 10, 25), payload=b"2")
    assert (again.job.id, again.deduplicated, again.job.state) == (first.id, True, State.AVAILABLE)
    assert again.job.available_at == first.created_at + micros(25)
    assert [(grant.id, grant.payload) for grant in jobs.claim(limit=1)] == [(first.id, b"2")]
    assert [grant.id for grant in jobs.claim(limit=9)] == [job.id for job in others]


def test_a_debounced_job_that_is_available_is_put_off_again(jobs: Jobs) -> None:
    first = send(jobs, debounce=debounce("k")).job
    jobs.move(11)
    jobs.promote()
    assert jobs.job(first.id).state is State.AVAILABLE
    assert send(jobs, debounce=debounce("k"), payload=b"2").job.state is State.SCHEDULED
    assert not jobs.claim()


def test_a_claim_opens_a_new_window(jobs: Jobs) -> None:
    first = send(jobs, debounce=debounce("k"), payload=b"1").job
    jobs.move(11)
    jobs.promote()
    grant = jobs.take()
    second = send(jobs, debounce=debounce("k"), payload=b"2")
    assert not second.deduplicated
    assert (second.job.id != first.id, second.job.state) == (True, State.SCHEDULED)
    jobs.settle(failed(grant, delay=0))
    assert payload_of(jobs, first.id) == b"1"
    check_keys(jobs)


def test_a_debounce_key_and_a_unique_key_of_one_name_know_nothing_of_each_other(jobs: Jobs) -> None:
    one = send(jobs, unique=K, payload=b"1").job
    other = send(jobs, debounce=debounce("k"), payload=b"2")
    assert (other.deduplicated, other.job.state) == (False, State.SCHEDULED)
    assert send(jobs, unique=K).job.id == one.id
    assert send(jobs, debounce=debounce("k"), payload=b"3").job.id == other.job.id
    assert (payload_of(jobs, one.id), payload_of(jobs, other.job.id)) == (b"1", b"3")
    check_keys(jobs)


def test_a_key_costs_nothing_to_jobs_that_have_none(jobs: Jobs) -> None:
    """No table of keys is even looked at by enqueue, claim, settlement and sweeps of jobs without one."""

    def act() -> None:
        for _ in range(2):
            jobs.enqueue()
            jobs.enqueue(delay=1)
            jobs.settle(done(jobs.take()))
        jobs.move(2)
        jobs.promote()
        jobs.take()
        jobs.move(90 * 86_400)
        jobs.abandon()
        jobs.purge()

    seen = sent(jobs, act)
    assert len(seen) > 10
    for table in ("job_uniques", "job_slots", "job_limits"):
        assert not [statement for statement in seen if table in statement]


def test_the_kinds_of_until_are_what_the_contract_names() -> None:
    assert [one.value for one in Until] == ["started", "finished"]
    assert Unique(b"k", b"d").until is FINISHED
