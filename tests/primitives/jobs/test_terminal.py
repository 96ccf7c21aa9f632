"""Terminal handlers, on every engine: each death enqueues its type's handler once, however the job died."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from app.clock import to_text
from app.db.database import Database
from app.primitives.jobs.model import (
    Caller,
    Granted,
    Kind,
    Mark,
    ReleaseReason,
    Settle,
    State,
    Verdict,
    id_bytes,
    id_text,
)
from app.primitives.jobs.model.terms import Handler
from app.primitives.jobs.ops import sweep
from app.primitives.jobs.ops.control import reconcile, retry
from app.primitives.jobs.ops.settle import settle
from app.primitives.jobs.tables import flows, job_contents, job_events
from app.primitives.jobs.tables import jobs as jobs_table
from tests.primitives.jobs.driving import CALLER, Host, Jobs, failed, new_job, released, unknown
from tests.primitives.jobs.promising import HANDLER, promise, set_policy
from tests.primitives.jobs.test_control import control, run, verdict
from tests.primitives.jobs.test_races import together
from tests.servers.proxy import Proxy

Replica = Callable[[], Jobs]
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def handlers(jobs: Jobs) -> list[Any]:
    """The hot rows of what deaths have enqueued, oldest first."""
    rows = [row for row in jobs.rows(jobs_table) if row.marks & Mark.TERMINAL_HANDLER]
    return sorted(rows, key=lambda row: bytes(row.id))


def told(jobs: Jobs, row: Any) -> dict[str, Any]:
    """What a handler's job is given to work on."""
    (content,) = jobs.rows(job_contents, job_contents.c.job_id == row.id)
    payload: dict[str, Any] = json.loads(content.payload)
    return payload


def names(jobs: Jobs, job_id: bytes) -> list[str]:
    """The handlers' jobs that the dead job's events name."""
    return [json.loads(row.detail)["handler_job_id"] for row in jobs.events(job_id) if row.kind == Kind.HANDLED]


def lose(jobs: Jobs) -> None:
    """The lease of whatever runs ends, and the sweep sees it; then what waits for a retry is due."""
    jobs.move(61)
    jobs.abandon()
    jobs.move(7200)
    jobs.promote()


# -- ways to die -----------------------------------------------------------------------------------------------------------


def by_a_failure_for_good(jobs: Jobs) -> None:
    jobs.settle(failed(jobs.take(), "refused", retry=False, message="no such account", reference="err-1"))


def by_spent_attempts(jobs: Jobs) -> None:
    jobs.settle(failed(jobs.take(), "down", delay=0))
    jobs.settle(failed(jobs.take(), "refused", message="no such account", reference="err-1"))


def by_a_deadline(jobs: Jobs) -> None:
    jobs.settle(failed(jobs.take(), "refused", delay=5000, message="no such account", reference="err-1"))


def by_lost_leases(jobs: Jobs) -> None:
    jobs.take()
    lose(jobs)
    jobs.take()
    lose(jobs)


def by_a_lost_lease_after_a_failure(jobs: Jobs) -> None:
    jobs.settle(failed(jobs.take(), "refused", delay=0, message="no such account", reference="err-1"))
    jobs.take()
    lose(jobs)


def by_too_many_releases(jobs: Jobs) -> None:
    jobs.host.set(jobs_max_releases=1)
    jobs.settle(released(jobs.take()))
    jobs.settle(released(jobs.take(), ReleaseReason.OTHER))


def by_a_verdict(jobs: Jobs) -> None:
    grant = jobs.take()
    jobs.settle(unknown(grant, "refused", message="no such account", reference="err-1"))
    run(jobs, reconcile, verdict(jobs, grant.id, Verdict.DEAD))


ERROR = ("refused", "no such account", "err-1")
WAYS: dict[str, tuple[Callable[[Jobs], None], str, dict[str, int], tuple[str, str, str] | None]] = {
    "failed for good": (by_a_failure_for_good, "refused", {"attempts": 1}, ERROR),
    "attempts spent": (by_spent_attempts, "refused", {"attempts": 2}, ERROR),
    "past its deadline": (by_a_deadline, "refused", {"attempts": 1}, ERROR),
    "leases lost": (by_lost_leases, "abandoned", {"attempts": 2, "lease_losses": 2}, None),
    "a lease lost after a failure": (
        by_a_lost_lease_after_a_failure,
        "abandoned",
        {"attempts": 2, "lease_losses": 1},
        ERROR,
    ),
    "released too often": (by_too_many_releases, "released_too_often", {"attempts": 0, "releases": 2}, None),
    "a verdict": (by_a_verdict, "refused", {"attempts": 1}, ERROR),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_every_way_to_die_enqueues_the_handler_once_and_tells_it_why(jobs: Jobs, way: str) -> None:
    die, category, counts, error = WAYS[way]
    promise(jobs.database, max_attempts=2, retry_until=4000 if way == "past its deadline" else None, handler=HANDLER)
    caller = Caller(CALLER.principal, "request-9", TRACE, "vendor=1")
    jobs.enqueue_all(new_job(correlation_id="order-1", parent_operation_id="op-1"), caller=caller)
    (job,) = jobs.rows(jobs_table)
    die(jobs)
    assert jobs.job(job.id).state is State.DEAD
    (row,) = handlers(jobs)
    (flow,) = jobs.rows(flows, flows.c.id == row.flow_id)
    assert (flow.queue, flow.type, flow.schema_version) == ("graves", "bury", 3)
    payload = told(jobs, row)
    last = payload.pop("last_error")
    assert payload == {
        "job": {"id": id_text(job.id), "queue": "q", "type": "t", "schema_version": 1},
        "category": category,
        "counts": {"attempts": 0, "lease_losses": 0, "releases": 0, "throttles": 0, **counts},
        "died_at": to_text(jobs.job(job.id).ended_at or 0),
        "correlation_id": "order-1",
        "parent_operation_id": "op-1",
        "payload": {},
        "payload_omitted": False,
    }
    assert (None if last is None else (last["category"], last["message"], last["reference"])) == error
    if last is not None:
        errors = [one for one in jobs.events(job.id) if one.kind in (Kind.FAILED, Kind.UNKNOWN)]
        assert last["at"] == to_text(errors[-1].at)
    (content,) = jobs.rows(job_contents, job_contents.c.job_id == row.id)
    assert (content.correlation_id, content.parent_operation_id) == ("order-1", id_text(job.id))
    assert (content.traceparent, content.tracestate, content.request_id) == (TRACE, "vendor=1", "request-9")
    assert names(jobs, job.id) == [id_text(row.id)]
    assert jobs.take("graves").id == row.id, "it is there to be claimed"


def test_a_handler_is_given_the_payload_of_the_dead_job_where_it_fits(jobs: Jobs) -> None:
    promise(jobs.database, handler=HANDLER)
    most = jobs.host.settings.max_payload_bytes
    for payload in (b'{"n": 1.50, "n": 123456789012345678901}', b'"' + b"x" * (most - 2) + b'"'):
        jobs.enqueue(payload=payload)
        jobs.settle(failed(jobs.take(), retry=False))
        row = handlers(jobs)[-1]
        (content,) = jobs.rows(job_contents, job_contents.c.job_id == row.id)
        fits = len(payload) < most // 2
        assert (b'"payload":' + payload in content.payload) is fits
        assert json.loads(content.payload)["payload_omitted"] is not fits
        assert len(content.payload) <= most


def test_the_newest_of_several_failures_is_told_of_each_job_of_one_sweep(jobs: Jobs) -> None:
    promise(jobs.database, max_attempts=3, handler=HANDLER)
    made = [jobs.enqueue().id for _ in range(3)]
    for category in ("first", "second"):
        jobs.settle_all(
            *(failed(grant, f"{category}-{made.index(grant.id)}", delay=0) for grant in jobs.claim(limit=3))
        )
    assert len(jobs.claim(limit=3)) == 3
    jobs.move(61)
    jobs.abandon()
    payloads = [told(jobs, row) for row in handlers(jobs)]
    found = {payload["job"]["id"]: payload["last_error"]["category"] for payload in payloads}
    assert found == {id_text(job_id): f"second-{place}" for place, job_id in enumerate(made)}


@pytest.mark.parametrize("way", ["cancelled", "cancelled while running", "unknown", "succeeded by verdict", "retried"])
def test_what_does_not_die_has_no_handler(jobs: Jobs, way: str) -> None:
    from app.primitives.jobs.ops.control import cancel

    promise(jobs.database, handler=HANDLER)
    job = jobs.enqueue()
    if way == "cancelled":
        run(jobs, cancel, control(jobs, job.id))
    elif way == "cancelled while running":
        grant = jobs.take()
        run(jobs, cancel, control(jobs, job.id))
        jobs.settle(failed(grant, retry=False))
    elif way == "retried":
        jobs.settle(failed(jobs.take()))
    else:
        jobs.settle(unknown(jobs.take()))
        if way == "succeeded by verdict":
            run(jobs, reconcile, verdict(jobs, job.id, Verdict.SUCCEEDED))
    assert jobs.job(job.id).state is not State.DEAD
    assert handlers(jobs) == []


def test_a_type_without_terms_or_handler_dies_alone(jobs: Jobs) -> None:
    promise(jobs.database, "other", handler=HANDLER)
    promise(jobs.database, "silent")
    jobs.enqueue_all(new_job("q", "t"), new_job("q", "silent"))
    jobs.settle_all(*(failed(grant, retry=False) for grant in jobs.claim(limit=2)))
    assert handlers(jobs) == []


def test_a_job_that_is_retried_and_dies_again_is_handled_again(jobs: Jobs) -> None:
    promise(jobs.database, handler=HANDLER)
    job = jobs.enqueue()
    jobs.settle(failed(jobs.take(), "first", retry=False))
    run(jobs, retry, control(jobs, job.id))
    jobs.settle(failed(jobs.take(), "second", retry=False))
    one, two = handlers(jobs)
    assert [told(jobs, row)["category"] for row in (one, two)] == ["first", "second"]
    assert names(jobs, job.id) == [id_text(one.id), id_text(two.id)]


def test_the_handler_of_the_moment_of_the_death_counts(jobs: Jobs) -> None:
    promise(jobs.database, handler=Handler("old", "h"))
    jobs.enqueue()
    grant = jobs.take()
    promise(jobs.database, handler=Handler("new", "h"))
    jobs.settle(failed(grant, retry=False))
    assert jobs.take("new").flow == ("new", "h", 1)
    assert jobs.claim("old") == ()


# -- what handles is a job like others, but owed ---------------------------------------------------------------------------


def test_the_death_of_a_handler_is_not_handled_whatever_its_contract_says(jobs: Jobs) -> None:
    """Its contract names itself: without the mark, each death would enqueue the next for ever."""
    promise(jobs.database, handler=HANDLER)
    promise(jobs.database, "bury", 3, max_attempts=1, handler=HANDLER)
    jobs.enqueue()
    jobs.settle(failed(jobs.take(), retry=False))
    buried = jobs.take("graves")
    jobs.settle(failed(buried))
    assert jobs.job(buried.id).state is State.DEAD
    run(jobs, retry, control(jobs, buried.id))
    jobs.take("graves")
    lose(jobs)
    assert jobs.job(buried.id).state is State.DEAD
    assert [row.id for row in handlers(jobs)] == [buried.id]
    own = jobs.enqueue("graves", "bury", 3)
    jobs.settle(failed(jobs.take("graves")))
    assert len(names(jobs, own.id)) == 1, "a job of that type that somebody enqueued is no handler"


def test_the_handlers_job_takes_its_defaults_from_its_own_terms(jobs: Jobs) -> None:
    promise(jobs.database, max_attempts=1, timeout=30, handler=HANDLER)
    promise(jobs.database, "bury", 3, max_attempts=8, timeout=90, lease=200, retry_until=1000)
    jobs.enqueue()
    jobs.settle(failed(jobs.take()))
    (row,) = handlers(jobs)
    job = jobs.job(row.id)
    assert (job.max_attempts, job.timeout, row.lease_micros) == (8, 90_000_000, 200_000_000)
    assert job.retry_until == job.created_at + 1_000_000_000


def test_nothing_can_refuse_a_handler_and_so_nothing_fails_a_settlement(jobs: Jobs) -> None:
    """Its queue is full and refuses types without a valid contract, and its schema takes nothing."""
    promise(jobs.database, handler=HANDLER)
    promise(jobs.database, "bury", 3, payload_schema=b"false", violations=("QUEUE001",))
    jobs.enqueue("graves", "other")
    jobs.limit("graves", 1)
    set_policy(jobs, "graves", "refuse")
    jobs.limit("graves", 1)
    jobs.enqueue()
    assert jobs.settle(failed(jobs.take(), retry=False)).state is State.DEAD
    assert len(handlers(jobs)) == 1


def test_a_handler_wakes_who_waits_for_it(jobs: Jobs) -> None:
    promise(jobs.database, handler=HANDLER)
    jobs.enqueue()
    grant = jobs.take()
    jobs.woken.clear()
    jobs.settle(failed(grant, retry=False))
    assert {("graves", "bury", 3): 1} in jobs.woken


def test_a_message_of_any_letters_reaches_the_handler(jobs: Jobs) -> None:
    promise(jobs.database, handler=HANDLER)
    jobs.enqueue(correlation_id="é😀")
    jobs.settle(failed(jobs.take(), retry=False, message='"\\ é 😀\n\t', reference="ß"))
    payload = told(jobs, handlers(jobs)[0])
    assert (payload["last_error"]["message"], payload["last_error"]["reference"]) == ('"\\ é 😀\n\t', "ß")
    assert payload["correlation_id"] == "é😀"


def test_a_hundred_deaths_of_one_settlement_cost_a_few_statements(jobs: Jobs) -> None:
    promise(jobs.database, handler=HANDLER)
    promise(jobs.database, "u", handler=Handler("graves", "burn"))
    jobs.enqueue_all(*(new_job("q", "tu"[number % 2], correlation_id=str(number)) for number in range(100)))
    grants = jobs.claim(limit=100)
    assert len(grants) == 100
    seen: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    engine = jobs.database._connections.engine("write")
    event.listen(engine, "before_cursor_execute", note)
    try:
        jobs.settle_all(*(failed(grant, retry=False) for grant in grants))
    finally:
        event.remove(engine, "before_cursor_execute", note)
    rows = handlers(jobs)
    assert len(rows) == len({told(jobs, row)["job"]["id"] for row in rows}) == 100
    assert {told(jobs, row)["correlation_id"] for row in rows} == {str(number) for number in range(100)}
    assert len(seen) <= 20, seen


# -- once ------------------------------------------------------------------------------------------------------------------


def test_poison_that_kills_every_worker_ends_and_is_handled_once(jobs: Jobs, replica: Replica) -> None:
    """camunda-bpm-platform#2858, sidekiq#4633 (scenario 6): a crash never counted, and the job came back for ever.

    Claimed and never settled; two replicas sweep at the same moment each time.
    """
    promise(jobs.database, max_attempts=50, max_lease_losses=4, handler=HANDLER)
    job = jobs.enqueue()
    processes = [jobs, replica()]
    for _ in range(4):
        assert jobs.take("q").id == job.id
        for process in processes:
            process.move(61)

        def swept(process: Jobs) -> Callable[[], int]:
            def body() -> int:
                try:
                    return process.abandon()
                finally:
                    if threading.current_thread() is not threading.main_thread():
                        process.database.close()

            return body

        together(*(swept(process) for process in processes))
        for process in processes:
            process.move(7200)
        jobs.promote()
    assert (jobs.job(job.id).state, jobs.job(job.id).category) == (State.DEAD, "abandoned")
    assert jobs.claim("q") == ()
    (row,) = handlers(jobs)
    assert told(jobs, row)["counts"] == {"attempts": 4, "lease_losses": 4, "releases": 0, "throttles": 0}
    assert told(jobs, row)["last_error"] is None


def test_many_deaths_swept_by_many_at_once_are_handled_once_each(jobs: Jobs, replica: Replica) -> None:
    promise(jobs.database, max_attempts=1, handler=HANDLER)
    jobs.enqueue_all(*(new_job() for _ in range(60)))
    assert len(jobs.claim(limit=60)) == 60
    processes = [jobs, replica(), replica()]
    for process in processes:
        process.move(61)

    def sweeping(process: Jobs) -> Callable[[], None]:
        def body() -> None:
            try:
                while process.abandon(most=7):
                    pass
            finally:
                process.database.close()

        return body

    together(*(sweeping(process) for process in processes))
    jobs.abandon()
    dead = [row.id for row in jobs.rows(jobs_table) if row.state == State.DEAD]
    assert len(dead) == 60
    assert sorted(told(jobs, row)["job"]["id"] for row in handlers(jobs)) == sorted(id_text(one) for one in dead)


def test_a_settlement_and_a_sweep_at_once_leave_one_death_and_one_handler(jobs: Jobs, replica: Replica) -> None:
    promise(jobs.database, max_attempts=1, handler=HANDLER)
    jobs.enqueue_all(*(new_job() for _ in range(20)))
    grants = jobs.claim(limit=20)
    other = replica()
    other.move(61)  # this one believes that the leases are over; the database's clock does not

    def settling() -> None:
        try:
            for grant in grants:
                jobs.settle_all(failed(grant, retry=False))
        finally:
            jobs.database.close()

    def sweeping() -> None:
        try:
            for _ in range(20):
                other.abandon(most=3)
        finally:
            other.database.close()

    together(settling, sweeping)
    assert {row.state for row in jobs.rows(jobs_table) if not row.marks} == {State.DEAD}
    assert len({told(jobs, row)["job"]["id"] for row in handlers(jobs)}) == len(handlers(jobs)) == 20


def _dying(jobs: Jobs) -> Granted:
    promise(jobs.database, max_attempts=1, handler=HANDLER)
    jobs.enqueue()
    return jobs.take()


def test_a_lost_answer_to_the_commit_of_a_death_does_not_double_its_handler(
    migrated_url: str, proxy: Proxy, open_database: Callable[[str], Database]
) -> None:
    jobs = Jobs(open_database(proxy.url(migrated_url)), Host())
    grant = _dying(jobs)
    proxy.lose_reply_to(b"COMMIT")
    assert jobs.settle(failed(grant, retry=False)).state is State.DEAD
    assert proxy.struck.is_set()
    assert jobs.database.faults == {"unknown": 1}
    assert len(handlers(jobs)) == len(names(jobs, grant.id)) == 1


def test_a_commit_of_a_death_that_never_arrived_still_brings_its_handler(
    migrated_url: str, proxy: Proxy, open_database: Callable[[str], Database]
) -> None:
    jobs = Jobs(open_database(proxy.url(migrated_url)), Host())
    grant = _dying(jobs)
    proxy.cut_before(b"COMMIT")
    assert jobs.settle(failed(grant, retry=False)).state is State.DEAD
    assert proxy.struck.is_set()
    assert len(handlers(jobs)) == len(names(jobs, grant.id)) == 1


def test_a_sweep_whose_commit_got_no_answer_does_not_double_a_handler(
    migrated_url: str, proxy: Proxy, open_database: Callable[[str], Database]
) -> None:
    jobs = Jobs(open_database(proxy.url(migrated_url)), Host())
    grant = _dying(jobs)
    jobs.move(61)
    proxy.lose_reply_to(b"COMMIT")
    jobs.abandon()
    assert proxy.struck.is_set()
    assert jobs.job(grant.id).state is State.DEAD
    assert len(handlers(jobs)) == len(names(jobs, grant.id)) == 1


@pytest.mark.parametrize("verb", ["settle", "abandon", "reconcile"])
def test_a_unit_that_runs_again_after_its_commit_makes_no_second_handler(jobs: Jobs, verb: str) -> None:
    grant = _dying(jobs)
    if verb == "settle":
        first, second = jobs.repeat(settle, Settle((failed(grant, retry=False),), CALLER))
        assert (first[0][0].state, second[0][0].state, second[0][0].replayed) == (State.DEAD, State.DEAD, True)
    elif verb == "abandon":
        jobs.move(61)
        first, second = jobs.repeat(sweep.abandon, sweep.Batch())
        assert (first, second) == ([1], [0])
    else:
        jobs.settle(unknown(grant))
        first, second = jobs.repeat(reconcile, verdict(jobs, grant.id, Verdict.DEAD))
        assert (first[0].replayed, second[0].replayed) == (False, False), "it is the same call, answered late"
    assert len(handlers(jobs)) == len(names(jobs, grant.id)) == 1


def test_a_verdict_given_twice_is_handled_once(jobs: Jobs) -> None:
    grant = _dying(jobs)
    jobs.settle(unknown(grant))
    given = verdict(jobs, grant.id, Verdict.DEAD)
    assert not run(jobs, reconcile, given).replayed
    assert run(jobs, reconcile, given).replayed
    assert len(handlers(jobs)) == 1


def test_a_retry_of_a_handled_death_is_answered_as_a_repeat_when_it_is_one(jobs: Jobs) -> None:
    """The event `handled` comes last at the death, and must not be taken for the newest thing that happened."""
    grant = _dying(jobs)
    jobs.settle(failed(grant, retry=False))
    assert not run(jobs, retry, control(jobs, grant.id)).replayed
    assert run(jobs, retry, control(jobs, grant.id)).replayed


def test_a_handler_goes_with_its_own_retention_and_not_with_the_dead_job(jobs: Jobs) -> None:
    grant = _dying(jobs)
    jobs.host.set(jobs_retention_seconds=0.0)
    jobs.settle(failed(grant, retry=False))
    jobs.move(1)
    jobs.purge()
    assert jobs.rows(job_events, job_events.c.job_id == grant.id) == []
    (row,) = handlers(jobs)
    assert jobs.take("graves").id == row.id
    assert id_bytes(told(jobs, row)["job"]["id"]) == grant.id
