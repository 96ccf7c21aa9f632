"""Terms, on every engine: what a new job begins with, what becomes of attempts that fail, and what policies let in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event

from app.clock import MICROS, micros
from app.db.tx import Tx
from app.errors import Refusal
from app.primitives.jobs.model import Enqueue, State
from app.primitives.jobs.model.terms import Handler, Terms
from app.primitives.jobs.ops import terms
from app.primitives.jobs.ops.enqueue import enqueue
from app.primitives.jobs.ops.flows import refresh_memory
from app.primitives.jobs.tables import flows as flows_table
from app.primitives.jobs.tables import jobs as jobs_table
from app.primitives.jobs.tables import queues as queues_table
from tests.primitives.jobs.driving import Jobs, done, failed, good, new_job, reason, released, unknown
from tests.primitives.jobs.promising import promise, read, set_policy
from tests.primitives.jobs.test_control import Verdict, retry, run, verdict
from tests.primitives.jobs.test_control import control as commanded
from tests.primitives.jobs.test_control import reconcile as reconciled

Replica = Callable[[], Jobs]
WHOLE = Terms(
    type="t",
    schema_version=7,
    max_attempts=9,
    retry_until=1,
    max_exceptions=2,
    backoff=(0.5, 60),
    timeout=3,
    lease=4,
    on_lease_loss="unknown",
    max_lease_losses=5,
    handler=Handler("q", "h", 2),
    payload_schema=b'{"pattern": "\xc3\xa9"}',
    unique_by="a",
    no_overlap_by="b",
    violations=("QUEUE001",),
    valid_until=6,
    lapses=("QUEUE002",),
    at_most=1,
)


# -- what is kept ----------------------------------------------------------------------------------------------------------


def test_terms_are_read_as_they_were_put_by_every_process(jobs: Jobs, replica: Replica) -> None:
    def write(tx: Tx, given: Sequence[Terms]) -> Sequence[None]:
        return [terms.put(tx, one) for one in given]

    jobs.database.run(write, [WHOLE, Terms("T", 7), Terms("t", 8)])
    for process in (jobs, jobs, replica()):
        found = read(process, ("t", 7), ("T", 7), ("t", 9))
        assert found == {("t", 7): WHOLE, ("T", 7): Terms("T", 7)}, "case counts, and so does the version"


def test_the_newest_terms_count_whoever_put_them(jobs: Jobs, replica: Replica) -> None:
    other = replica()
    promise(jobs.database, max_attempts=2)
    assert other.enqueue().max_attempts == 2
    promise(jobs.database, max_attempts=3)
    assert other.enqueue().max_attempts == 3
    promise(other.database, max_attempts=2)
    assert (jobs.enqueue().max_attempts, other.enqueue().max_attempts) == (2, 2)


def test_terms_that_were_rolled_back_are_not_remembered(jobs: Jobs) -> None:
    promise(jobs.database, max_attempts=2)

    def write(tx: Tx, _: Sequence[None]) -> Sequence[None]:
        terms.put(tx, Terms("t", 1, max_attempts=3))
        assert terms.read(tx, [("t", 1)])["t", 1].max_attempts == 3
        raise LookupError

    with pytest.raises(LookupError):
        jobs.database.run(write, [None])
    assert jobs.enqueue().max_attempts == 2


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"handler": Handler(destination="mail")}, "handler"),
        ({"handler": Handler(queue="q")}, "handler"),
        ({"handler": Handler(type="t")}, "handler"),
        ({"payload_schema": b'{"type": "nonsense"}'}, "payload_schema"),
    ],
)
def test_terms_that_cannot_be_kept_are_refused_and_not_ignored(jobs: Jobs, fields: Any, field: str) -> None:
    with pytest.raises(terms.TermsNotUsable) as refused:
        promise(jobs.database, **fields)
    assert refused.value.field == field
    assert read(jobs, ("t", 1)) == {}


def test_an_enqueue_reads_terms_with_one_statement_however_many_types_it_has(jobs: Jobs) -> None:
    for number in range(5):
        promise(jobs.database, f"t{number}", payload_schema=b"{}")
    batch = [new_job("q", f"t{number % 10}") for number in range(50)]
    jobs.enqueue_all(*batch)
    seen: list[str] = []
    engine = jobs.database._connections.engine("write")

    def note(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "job_terms" in statement:
            seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        jobs.enqueue_all(*(replace(one, id=bytes(reversed(one.id))) for one in batch))
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert len(seen) == 1


# -- what a job begins with ------------------------------------------------------------------------------------------------


def test_what_is_enqueued_comes_before_the_terms_and_those_before_the_settings(jobs: Jobs) -> None:
    settings = jobs.host.settings
    plain = jobs.enqueue(type_="plain")
    assert (plain.max_attempts, plain.timeout) == (settings.jobs_max_attempts, micros(settings.jobs_timeout_seconds))
    assert plain.retry_until is None
    promise(jobs.database, max_attempts=2, timeout=30, retry_until=100)
    promised = jobs.enqueue()
    assert (promised.max_attempts, promised.timeout) == (2, 30 * MICROS)
    assert promised.retry_until == promised.created_at + 100 * MICROS
    until = jobs.now + 5 * MICROS
    own = jobs.enqueue(max_attempts=7, timeout=9, retry_until=until)
    assert (own.max_attempts, own.timeout, own.retry_until) == (7, 9 * MICROS, until)
    for one in (plain, promised, own):
        assert jobs.job(one.id) == one, "the answer is what is on disk"


def test_terms_that_say_nothing_leave_it_to_the_settings(jobs: Jobs) -> None:
    promise(jobs.database)
    assert jobs.enqueue().max_attempts == jobs.host.settings.jobs_max_attempts


def test_the_deadline_counts_from_the_availability_if_that_is_later(jobs: Jobs) -> None:
    promise(jobs.database, retry_until=100)
    later = jobs.enqueue(delay=50)
    assert later.retry_until == later.created_at + 150 * MICROS
    past = jobs.enqueue(available_at=jobs.now - 50 * MICROS)
    assert past.retry_until == past.created_at + 100 * MICROS


def test_a_job_without_a_ceiling_says_so_and_goes_on(jobs: Jobs) -> None:
    promise(jobs.database, unlimited=True, backoff=(1,))
    job = jobs.enqueue()
    assert (job.max_attempts, jobs.job(job.id).max_attempts) == (None, None)
    for attempt in range(1, 12):
        grant = jobs.take()
        assert (grant.attempt, grant.max_attempts) == (attempt, None)
        assert jobs.settle(failed(grant)).state is State.SCHEDULED
        jobs.move(2)
        jobs.promote()
    assert jobs.enqueue(max_attempts=3).max_attempts == 3


def test_a_job_without_a_ceiling_still_ends_at_its_deadline(jobs: Jobs) -> None:
    promise(jobs.database, unlimited=True, retry_until=100, backoff=(10,))
    jobs.enqueue()
    assert jobs.settle(failed(jobs.take())).state is State.SCHEDULED
    jobs.move(95)
    jobs.promote()
    assert jobs.settle(failed(jobs.take())).state is State.DEAD


def test_a_repeat_under_a_key_is_answered_as_before_under_other_terms(jobs: Jobs) -> None:
    promise(jobs.database, max_attempts=2)
    first = jobs.enqueue(key="k")
    promise(jobs.database, max_attempts=3, payload_schema=b"false", violations=("QUEUE001",))
    jobs.host.set(contract_policy="refuse")
    (again,) = jobs.enqueue_all(new_job(key="k"))
    assert (good(again).replayed, good(again).job) == (True, first)


def test_an_enqueue_whose_answer_was_lost_is_not_judged_again(jobs: Jobs) -> None:
    """Between the two tries the contract may have changed: what is on disk is answered."""
    jobs.host.set(contract_policy="refuse")
    promise(jobs.database)
    command = Enqueue((new_job(),), jobs.caller)
    calls: list[int] = []

    def changing(tx: Tx, commands: Sequence[Any]) -> Any:
        calls.append(1)
        if tx.repeated:
            terms.put(tx, Terms("t", 1, violations=("QUEUE001",)))
        return enqueue(tx, commands)

    first, second = jobs.repeat(changing, command)
    assert len(calls) == 2
    assert good(second[0][0]).job == good(first[0][0]).job


# -- leases ----------------------------------------------------------------------------------------------------------------


def held_for(jobs: Jobs, grant: Any) -> float:
    (row,) = jobs.rows(jobs_table, jobs_table.c.id == grant.id)
    assert row.due_at == grant.expires_at
    return round((grant.expires_at - row.claimed_at) / MICROS, 3)


def test_a_claim_that_names_no_lease_gets_the_contracts_else_the_setting(jobs: Jobs) -> None:
    promise(jobs.database, "long", lease=300)
    for type_, asked, lease in (("long", None, 300), ("long", 20, 20), ("plain", None, 60), ("plain", 20, 20)):
        jobs.enqueue(type_, type_)
        grant = jobs.take(type_, lease=asked)
        assert held_for(jobs, grant) == lease, (type_, asked)
        jobs.move(10)
        (beat,) = jobs.beat_all(replace_lease(grant))
        assert good(beat).expires_at - jobs.now == pytest.approx(lease * MICROS, abs=5 * MICROS)
        jobs.settle(done(grant))
    jobs.host.set(jobs_lease_seconds=7.0)
    jobs.enqueue("plain", "plain")
    assert held_for(jobs, jobs.take("plain", lease=None)) == 7


def replace_lease(grant: Any) -> Any:
    from app.primitives.jobs.model import Beat

    return Beat(grant.id, grant.token, None)


def test_one_claim_gives_each_job_the_lease_of_its_own_type(jobs: Jobs) -> None:
    promise(jobs.database, "long", lease=300)
    promise(jobs.database, "short", lease=5)
    jobs.enqueue_all(new_job("q", "long"), new_job("q", "short"), new_job("q", "plain"))
    grants = jobs.claim(limit=3, lease=None)
    assert {grant.flow[1]: held_for(jobs, grant) for grant in grants} == {"long": 300, "short": 5, "plain": 60}


@pytest.mark.parametrize("way", ["failed", "released", "abandoned", "undelivered", "retried", "judged"])
def test_a_lease_that_a_claim_named_does_not_outlive_its_attempt(jobs: Jobs, way: str) -> None:
    promise(jobs.database, lease=300)
    jobs.enqueue()
    grant = jobs.take(lease=20)
    if way == "failed":
        jobs.settle(failed(grant, delay=0))
    elif way == "released":
        jobs.settle(released(grant))
    elif way == "abandoned":
        jobs.move(30)
        jobs.abandon()
        jobs.move(3600)
        jobs.promote()
    elif way == "undelivered":
        jobs.give_back(grant)
    elif way == "retried":
        jobs.settle(failed(grant, retry=False))
        run(jobs, retry, commanded(jobs, grant.id))
    else:
        jobs.settle(unknown(grant))
        run(jobs, reconciled, verdict(jobs, grant.id, Verdict.RETRY))
    assert held_for(jobs, jobs.take(lease=None)) == 300


# -- what becomes of attempts that fail ------------------------------------------------------------------------------------


def test_the_contracts_pauses_count_from_the_next_failure_on(jobs: Jobs) -> None:
    promise(jobs.database, backoff=(100, 200))
    jobs.enqueue()
    first = jobs.settle(failed(jobs.take()))
    assert 100 * MICROS <= (first.available_at or 0) - jobs.now + MICROS <= 122 * MICROS
    promise(jobs.database, backoff=(1000, 2000))
    jobs.move(121)
    jobs.promote()
    second = jobs.settle(failed(jobs.take()))
    assert 1999 * MICROS <= (second.available_at or 0) - jobs.now <= 2400 * MICROS


def test_failures_have_a_ceiling_of_their_own_that_lost_leases_do_not_count_to(jobs: Jobs) -> None:
    promise(jobs.database, max_attempts=20, max_exceptions=2, max_lease_losses=9)
    job = jobs.enqueue()
    for _ in range(3):
        jobs.take(lease=10)
        jobs.move(11)
        jobs.abandon()
        jobs.move(3600)
        jobs.promote()
    assert jobs.settle(failed(jobs.take(), delay=0)).state is State.AVAILABLE
    assert jobs.settle(released(jobs.take())).state is State.AVAILABLE
    assert jobs.settle(failed(jobs.take(), delay=0)).state is State.DEAD
    assert (jobs.job(job.id).attempt, jobs.job(job.id).lease_losses) == (5, 3)


def test_what_a_lost_lease_means_is_the_contracts_to_say(jobs: Jobs) -> None:
    promise(jobs.database, "careful", on_lease_loss="unknown")
    promise(jobs.database, "strict", max_lease_losses=1)
    promise(jobs.database, "bold", on_lease_loss="retry")
    jobs.host.set(jobs_on_lease_loss="retry")
    made = {type_: jobs.enqueue("q", type_).id for type_ in ("careful", "strict", "bold", "plain")}
    jobs.claim(limit=4, lease=10)
    jobs.move(11)
    jobs.abandon()
    states = {type_: jobs.job(job_id).state for type_, job_id in made.items()}
    assert states == {
        "careful": State.UNKNOWN,
        "strict": State.DEAD,
        "bold": State.SCHEDULED,
        "plain": State.SCHEDULED,
    }


# -- policies --------------------------------------------------------------------------------------------------------------


def outcomes(jobs: Jobs, *flows: tuple[str, str]) -> list[str]:
    """For each new job what became of it: `ok`, `warned <code>` or `refused <code>`."""
    found = []
    for one in jobs.enqueue_all(*(new_job(queue, type_) for queue, type_ in flows)):
        if isinstance(one, Refusal):
            found.append(f"refused {one.code.name}")
        else:
            found.append("ok" if one.warning is None else f"warned {one.warning.code.name}")
    return found


TYPES = (("q", "plain"), ("q", "good"), ("q", "bad"))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("allow", ["ok", "ok", "ok"]),
        ("warn", ["warned contract_required", "ok", "warned contract_violated"]),
        ("refuse", ["refused contract_required", "ok", "refused contract_violated"]),
    ],
)
@pytest.mark.parametrize("by_queue", [False, True])
def test_a_type_without_a_valid_contract_is_taken_by_the_policy(
    jobs: Jobs, policy: str, expected: list[str], by_queue: bool
) -> None:
    promise(jobs.database, "good")
    promise(jobs.database, "bad", violations=("QUEUE003", "QUEUE001"))
    if by_queue:
        jobs.host.set(contract_policy="refuse" if policy != "refuse" else "allow")
        set_policy(jobs, "q", policy)
    else:
        jobs.host.set(contract_policy=policy)
    assert outcomes(jobs, *TYPES) == expected
    assert len(jobs.rows(jobs_table)) == sum(not one.startswith("refused") for one in expected)


def test_what_is_refused_makes_no_queue_and_no_flow(jobs: Jobs) -> None:
    jobs.host.set(contract_policy="refuse")
    promise(jobs.database, "good", payload_schema=b"false")
    assert outcomes(jobs, ("new", "plain"), ("new", "good")) == ["refused contract_required", "refused payload_invalid"]
    assert jobs.rows(queues_table) == jobs.rows(flows_table) == []


def test_a_violated_contract_names_its_rules(jobs: Jobs) -> None:
    jobs.host.set(contract_policy="refuse")
    promise(jobs.database, violations=("QUEUE003", "QUEUE001"))
    (refused,) = jobs.enqueue_all(new_job())
    assert isinstance(refused, Refusal)
    assert refused.extra == {"rules": ["QUEUE003", "QUEUE001"]}


def test_an_exemption_ends_at_its_moment_by_the_databases_clock(jobs: Jobs) -> None:
    jobs.host.set(contract_policy="refuse")
    promise(jobs.database, valid_until=jobs.now + 100 * MICROS, lapses=("QUEUE001", "QUEUE003"), violations=())
    assert outcomes(jobs, ("q", "t")) == ["ok"]
    jobs.move(101)
    assert outcomes(jobs, ("q", "t")) == ["refused contract_violated"]
    promise(jobs.database, valid_until=jobs.now + 100 * MICROS, lapses=("QUEUE001",))
    assert outcomes(jobs, ("q", "t")) == ["ok"], "a renewed exemption counts at once"


def test_a_queues_policy_reaches_the_other_replicas_with_their_next_refresh(jobs: Jobs, replica: Replica) -> None:
    other = replica()
    assert outcomes(other, ("q", "plain")) == ["ok"]
    set_policy(jobs, "q", "refuse")
    assert outcomes(jobs, ("q", "plain")) == ["refused contract_required"]
    other.database.read(refresh_memory, None)
    assert outcomes(other, ("q", "plain")) == ["refused contract_required"]
    set_policy(jobs, "q", None)
    other.database.read(refresh_memory, None)
    assert outcomes(other, ("q", "plain")) == ["ok"]


def test_a_replica_that_has_never_seen_a_queue_asks_the_database_for_its_policy(jobs: Jobs, replica: Replica) -> None:
    """The queue was set up elsewhere before its first job, so no flow has told this process of it."""
    other = replica()
    set_policy(jobs, "q", "refuse")
    assert outcomes(other, ("q", "plain")) == ["refused contract_required"]


def test_a_refusal_of_one_job_leaves_the_others_of_its_batch(jobs: Jobs) -> None:
    set_policy(jobs, "strict", "refuse")
    set_policy(jobs, "lenient", "warn")
    promise(jobs.database, payload_schema=b'{"type": "null"}')
    given = outcomes(jobs, ("strict", "plain"), ("lenient", "plain"), ("free", "plain"), ("free", "t"))
    assert given == ["refused contract_required", "warned contract_required", "ok", "refused payload_invalid"]
    assert len(jobs.rows(jobs_table)) == 2


def test_warnings_are_counted_once_committed_and_refusals_are_not(jobs: Jobs) -> None:
    set_policy(jobs, "q", "warn")
    promise(jobs.database, "bad", violations=("QUEUE001",))
    outcomes(jobs, ("q", "plain"), ("q", "bad"), ("q", "plain"))
    assert jobs.host.memory.warnings() == {("q", "contract_required"): 2, ("q", "contract_violated"): 1}
    set_policy(jobs, "q", "refuse")
    outcomes(jobs, ("q", "plain"))
    assert jobs.host.memory.warnings().total() == 3


# -- payloads --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["allow", "warn", "refuse"])
def test_a_payload_is_held_against_the_schema_whatever_the_policy(jobs: Jobs, policy: str) -> None:
    jobs.host.set(contract_policy=policy)
    promise(jobs.database, payload_schema=b'{"required": ["n"]}', violations=())
    (refused,) = jobs.enqueue_all(new_job(payload=b"{}"))
    assert reason(refused) == "payload_invalid"
    (taken,) = jobs.enqueue_all(new_job(payload=b'{"n": 1}'))
    assert good(taken).warning is None


def test_a_changed_schema_counts_for_the_next_enqueue_on_every_replica(jobs: Jobs, replica: Replica) -> None:
    other = replica()
    promise(jobs.database, payload_schema=b'{"type": "object"}')
    assert outcomes(other, ("q", "t")) == ["ok"]
    promise(jobs.database, payload_schema=b'{"type": "array"}')
    assert outcomes(other, ("q", "t")) == ["refused payload_invalid"]
    promise(jobs.database)
    assert outcomes(other, ("q", "t")) == ["ok"]


def test_a_payload_that_does_not_fit_takes_no_room_and_uses_no_key(jobs: Jobs) -> None:
    promise(jobs.database, payload_schema=b'{"type": "object"}')
    jobs.enqueue()
    jobs.limit("q", 2)
    refused, taken = jobs.enqueue_all(new_job(payload=b"1", key="k"), new_job(payload=b"{}", key="k"))
    assert reason(refused) == "payload_invalid"
    assert not good(taken).replayed


def test_no_enqueue_asks_for_attempts_that_its_contract_says_do_harm(jobs: Jobs) -> None:
    """Whatever the policy: a producer's own `max_attempts` would be the second charge."""
    promise(jobs.database, max_attempts=1, at_most=1)
    refused, first, taken = jobs.enqueue_all(new_job(max_attempts=2), new_job(max_attempts=1), new_job())
    assert isinstance(refused, Refusal)
    assert (refused.code.name, [one.pointer for one in refused.errors]) == ("contract_violated", ["#/max_attempts"])
    assert [good(one).job.max_attempts for one in (first, taken)] == [1, 1]
