"""Bulk actions, on every engine: what the dry run counts is what is changed, no more than the limit, never the unknown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.access import Principal
from app.primitives.audit.tables import audit
from app.primitives.jobs.model import Caller, Filter, State
from app.primitives.jobs.ops import bulk
from app.primitives.jobs.ops.bulk import Action, Bulk, Step, change
from app.primitives.jobs.tables import job_contents, job_keys, job_refs
from app.primitives.jobs.tables import jobs as jobs_table
from tests.primitives.jobs.driving import Jobs, principal
from tests.primitives.jobs.test_control import in_state
from tests.service import Service


def step(jobs: Jobs, action: Action, *, left: int = 1000, **fields: Any) -> Step:
    wanted = Filter(**{name: fields.pop(name) for name in list(fields) if name in Filter.__dataclass_fields__})
    caller = fields.pop("caller", jobs.caller)
    (outcome,) = jobs.database.run(change, [Bulk(action, wanted, caller, "why", left, **fields)])
    done: Step = outcome
    return done


@pytest.fixture
def of_every_state(jobs: Jobs) -> dict[State, bytes]:
    # blocked jobs come to be by another job's slot: see test_lines.py
    return {state: in_state(jobs, state) for state in reversed(State) if state is not State.BLOCKED}


CHANGES: dict[Action, dict[State, State | None]] = {
    Action.CANCEL: {State.AVAILABLE: State.CANCELLED, State.SCHEDULED: State.CANCELLED, State.RUNNING: State.RUNNING},
    Action.RETRY: {State.DEAD: State.AVAILABLE, State.CANCELLED: State.AVAILABLE},
    Action.PURGE: {State.SUCCEEDED: None, State.DEAD: None, State.CANCELLED: None},
}


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("narrow", [{"queue": "q"}, {"type": "t"}, {"created_after": 0}], ids=str)
def test_an_action_changes_what_it_can_and_nothing_else(
    jobs: Jobs, of_every_state: dict[State, bytes], action: Action, narrow: dict[str, Any]
) -> None:
    changes = CHANGES[action]
    dry = step(jobs, action, dry_run=True, **narrow)
    assert (dry.matched, dry.changed, dry.more) == (len(changes), 0, False)
    for state, job_id in of_every_state.items():
        assert jobs.job(job_id).state is state, "a dry run changes nothing"
    done = step(jobs, action, **narrow)
    assert (done.matched, done.changed, done.more) == (len(changes), len(changes), False)
    there = {bytes(row.id) for row in jobs.rows(jobs_table)}
    for state, job_id in of_every_state.items():
        left = changes.get(state, state)
        assert (job_id in there) == (left is not None)
        if left is not None:
            assert jobs.job(job_id).state is left
    assert jobs.job(of_every_state[State.UNKNOWN]).state is State.UNKNOWN
    if action is Action.CANCEL:
        assert jobs.job(of_every_state[State.RUNNING]).cancel_requested_at is not None
    assert step(jobs, action, **narrow).changed == 0


@pytest.mark.parametrize("action", list(Action))
def test_an_unknown_job_is_never_touched_even_if_named(jobs: Jobs, action: Action) -> None:
    job_id = in_state(jobs, State.UNKNOWN)
    done = step(jobs, action, state=State.UNKNOWN)
    assert (done.matched, done.changed) == (0, 0)
    assert jobs.job(job_id).state is State.UNKNOWN


@pytest.mark.parametrize("state", [State.AVAILABLE, State.SCHEDULED, State.RUNNING])
def test_a_job_that_has_not_ended_is_never_purged(jobs: Jobs, state: State) -> None:
    job_id = in_state(jobs, state)
    assert step(jobs, Action.PURGE, state=state).changed == 0
    assert step(jobs, Action.PURGE, queue="q").changed == 0
    assert jobs.job(job_id).state is state


def test_a_purge_leaves_nothing_of_a_job(jobs: Jobs) -> None:
    from tests.primitives.jobs.driving import done, new_job

    jobs.enqueue_all(new_job(key="k", correlation_id="c"))
    jobs.settle(done(jobs.take(), b"1"))
    assert step(jobs, Action.PURGE, correlation_id="c").changed == 1
    for table in (jobs_table, job_contents, job_keys, job_refs):
        assert jobs.rows(table) == []


def test_every_filter_narrows_an_action(jobs: Jobs) -> None:
    wanted = jobs.enqueue("a", "x", correlation_id="c")
    for queue, type_, correlation in (("b", "x", "c"), ("a", "y", "c"), ("a", "x", "d")):
        jobs.enqueue(queue, type_, correlation_id=correlation)
    narrow = {"queue": "a", "type": "x", "correlation_id": "c", "state": State.AVAILABLE}
    assert step(jobs, Action.CANCEL, dry_run=True, **narrow).matched == 1
    assert step(jobs, Action.CANCEL, **narrow).changed == 1
    assert jobs.job(wanted.id).state is State.CANCELLED
    assert step(jobs, Action.CANCEL, queue="nothing").matched == 0


def test_a_keys_patterns_narrow_an_action(jobs: Jobs) -> None:
    mine, other = jobs.enqueue("billing.eu"), jobs.enqueue("mail")
    limited = Caller(principal("k", "billing.*"), "r")
    assert step(jobs, Action.CANCEL, created_after=0, caller=limited).changed == 1
    assert (jobs.job(mine.id).state, jobs.job(other.id).state) == (State.CANCELLED, State.AVAILABLE)


def test_a_limit_caps_what_is_counted_and_what_is_touched(jobs: Jobs) -> None:
    for _ in range(5):
        jobs.enqueue()
    assert step(jobs, Action.CANCEL, left=3, queue="q", dry_run=True).matched == 3
    done = step(jobs, Action.CANCEL, left=3, queue="q")
    assert (done.changed, done.more) == (3, False)
    assert step(jobs, Action.CANCEL, queue="q").changed == 2


def test_steps_go_on_until_all_are_done_and_leave_later_comers_alone(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "STEP", 2)
    for _ in range(5):
        jobs.enqueue()
    first = step(jobs, Action.CANCEL, queue="q")
    assert (first.matched, first.changed, first.more) == (2, 2, True)
    jobs.move(1)
    later = jobs.enqueue()
    now = first
    while now.more:
        now = step(
            jobs,
            Action.CANCEL,
            queue="q",
            left=1000 - now.matched,
            before=now.before,
            matched=now.matched,
            changed=now.changed,
        )
    assert (now.matched, now.changed) == (5, 5)
    assert jobs.job(later.id).state is State.AVAILABLE
    (entry,) = jobs.rows(audit)
    assert (entry.action, entry.reason) == ("jobs.bulk_cancel", "why")
    assert msgspec.json.decode(entry.details) == {"filter": {"queue": "q"}, "matched": 5, "changed": 5}


@pytest.mark.parametrize("action", [Action.CANCEL, Action.PURGE])
def test_a_step_whose_answer_was_lost_touches_no_others_and_is_audited_once(
    jobs: Jobs, action: Action, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        in_state(jobs, State.AVAILABLE if action is Action.CANCEL else State.CANCELLED)
    jobs.database.run(lambda tx, commands: [tx.conn.execute(audit.delete())] * len(commands), [None])
    command = Bulk(action, Filter(queue="q"), jobs.caller, "why", left=2)
    (first,), (second,) = jobs.repeat(change, command)
    for one in (first, second):
        assert (one.matched, one.changed, one.more) == (2, 2, False)
    assert len(jobs.rows(audit)) == 1
    assert step(jobs, action, queue="q", dry_run=True).matched == 3


def test_an_action_that_broke_off_is_audited_with_what_it_did(jobs: Jobs) -> None:
    jobs.enqueue()
    over = step(jobs, Action.CANCEL, queue="q", matched=4, changed=3, over=True)
    assert (over.matched, over.changed, over.more) == (4, 3, False)
    (entry,) = jobs.rows(audit)
    assert msgspec.json.decode(entry.details) == {"filter": {"queue": "q"}, "matched": 4, "changed": 3}
    assert step(jobs, Action.CANCEL, queue="q", dry_run=True).matched == 1


def test_a_retry_of_many_wakes_who_waits(jobs: Jobs) -> None:
    for _ in range(2):
        in_state(jobs, State.DEAD)
    jobs.woken.clear()
    step(jobs, Action.RETRY, queue="q")
    assert jobs.woken == [{("q", "t", 1): 2}]


def test_each_job_tells_who_did_it_and_why(jobs: Jobs) -> None:
    job_id = in_state(jobs, State.AVAILABLE)
    who = Caller(Principal("k_1", "ada", jobs.caller.principal.roles), "request-9")
    step(jobs, Action.CANCEL, queue="q", caller=who)
    (event,) = jobs.events(job_id)
    assert (event.kind, event.message, event.actor, event.request_id) == ("cancelled", "why", "k_1", "request-9")


# -- over HTTP -------------------------------------------------------------------------------------------------------------


async def filled(service: Service, count: int, queue: str = "q") -> None:
    body = {"jobs": [{"queue": queue, "type": "t", "payload": number} for number in range(count)]}
    await service.post("/v1/jobs/batch", body, status=200)


@pytest.mark.anyio
async def test_the_button_touches_what_the_dry_run_counted(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """kind_robots#924, faktory#418: the count on the page was not what the bulk button touched."""
    monkeypatch.setattr(bulk, "STEP", 4)
    await filled(service, 10)
    await filled(service, 3, "other")
    body = {"action": "cancel", "filter": {"queue": "q"}, "reason": "x"}
    dry = await service.post("/v1/jobs/bulk", {**body, "dry_run": True}, status=200)
    assert (dry["matched"], dry["changed"], dry["dry_run"]) == (10, 0, True)
    some = await service.post("/v1/jobs/bulk", {**body, "limit": 6}, status=200)
    assert (some["matched"], some["changed"], some["more"]) == (6, 6, True)
    rest = await service.post("/v1/jobs/bulk", body, status=200)
    assert (rest["matched"], rest["changed"], rest["more"]) == (4, 4, False)
    counts = (await service.get("/v1/queues/q", status=200))["counts"]
    assert (counts["cancelled"], counts["available"]) == (10, 0)
    assert (await service.get("/v1/queues/other", status=200))["counts"]["available"] == 3
    audited = await service.get("/v1/audit", params={"action": "jobs.bulk_cancel"}, status=200)
    assert [entry["details"]["changed"] for entry in audited["items"]] == [4, 6]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "body",
    [
        {"action": "cancel", "filter": {}, "reason": "x"},
        {"action": "cancel", "reason": "x"},
        {"action": "cancel", "filter": {"queue": "q"}},
        {"action": "delete", "filter": {"queue": "q"}, "reason": "x"},
        {"action": "cancel", "filter": {"queue": "q"}, "reason": "x", "limit": 10_001},
        {"action": "cancel", "filter": {"queues": "q"}, "reason": "x"},
    ],
)
async def test_nobody_changes_every_job_by_accident(service: Service, body: dict[str, Any]) -> None:
    await filled(service, 1)
    await service.post("/v1/jobs/bulk", body, status=422)
    assert (await service.get("/v1/queues/q", status=200))["counts"]["available"] == 1
