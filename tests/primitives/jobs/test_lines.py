"""Concurrency keys, on every engine: never more than the limit, nobody waits while a slot is free, order within a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import delete

from app.db.database import Database
from app.db.tx import Tx
from app.primitives.jobs.model import Control, Filter, Granted, Mark, Place, Round, Settle, State, Verdict
from app.primitives.jobs.ops import bulk, control, inspect
from app.primitives.jobs.ops.explain import Explain, explain
from app.primitives.jobs.ops.work import work
from app.primitives.jobs.store import lines
from app.primitives.jobs.tables import job_limits, job_slots
from app.primitives.jobs.tables import jobs as jobs_table
from tests.primitives.jobs.driving import Host, Jobs, done, failed, good, new_job, principal, reason, released, unknown
from tests.primitives.jobs.keyed import REPLACE, check_keys, debounce, send, sent, slot, states, unique
from tests.primitives.jobs.test_races import analyse, plans

AVAILABLE, BLOCKED, RUNNING, SCHEDULED = State.AVAILABLE, State.BLOCKED, State.RUNNING, State.SCHEDULED


def line(jobs: Jobs, count: int, limit: int = 1, **fields: Any) -> list[bytes]:
    """So many jobs of one key, one after the other."""
    return [send(jobs, concurrency=slot("k", limit), **fields).job.id for _ in range(count)]


def operate(jobs: Jobs, op: Callable[..., Any], job_id: bytes, **told: Any) -> Any:
    (outcome,) = jobs.database.run(op, [Control(job_id, jobs.caller, reason="because", **told)])
    return outcome


def in_order(jobs: Jobs, ids: list[bytes]) -> list[State]:
    now = states(jobs)
    return [now[job_id] for job_id in ids]


# -- enqueue ---------------------------------------------------------------------------------------------------------------


def test_the_first_get_the_slots_and_the_others_wait_in_order(jobs: Jobs) -> None:
    ids = line(jobs, 5, limit=2)
    assert in_order(jobs, ids) == [AVAILABLE, AVAILABLE, BLOCKED, BLOCKED, BLOCKED]
    check_keys(jobs)
    order = []
    for _ in range(5):
        grant = jobs.take()
        order.append(grant.id)
        jobs.settle(done(grant))
        check_keys(jobs)
    assert order == ids


def test_a_batch_is_as_if_its_jobs_came_one_by_one(jobs: Jobs) -> None:
    outcomes = jobs.enqueue_all(*(new_job(concurrency=slot(name, 2)) for name in "aababba"))
    assert [good(one).job.state for one in outcomes] == [AVAILABLE] * 3 + [BLOCKED, AVAILABLE, BLOCKED, BLOCKED]
    assert [states(jobs)[good(one).job.id] for one in outcomes] == [good(one).job.state for one in outcomes]
    check_keys(jobs)


def test_a_key_counts_for_every_type_and_queue(jobs: Jobs) -> None:
    assert send(jobs, "a", "x", concurrency=slot()).job.state is AVAILABLE
    assert send(jobs, "b", "y", concurrency=slot()).job.state is BLOCKED
    assert send(jobs, "a", "x", concurrency=slot("other")).job.state is AVAILABLE
    assert send(jobs, "a", "x").job.state is AVAILABLE


def test_the_newest_limit_is_the_keys(jobs: Jobs) -> None:
    ids = line(jobs, 4)
    raised = send(jobs, concurrency=slot("k", 3)).job
    assert [*in_order(jobs, ids), raised.state] == [AVAILABLE, AVAILABLE, AVAILABLE, BLOCKED, BLOCKED]
    check_keys(jobs)
    more = send(jobs, concurrency=slot("k", 5)).job
    assert more.state is BLOCKED, "those who came before it get the slots"
    assert in_order(jobs, ids) == [AVAILABLE] * 4
    last = send(jobs, concurrency=slot("k", 6)).job
    assert states(jobs)[last.id] is BLOCKED
    check_keys(jobs)
    send(jobs, concurrency=slot("k", 1))
    check_keys(jobs, most_ever=6)
    for _ in range(5):
        jobs.settle(done(jobs.take()))
    check_keys(jobs, most_ever=6)
    assert sum(state is AVAILABLE for state in states(jobs).values()) == 1


def test_a_job_that_gets_a_slot_by_its_own_limit_says_so(jobs: Jobs) -> None:
    line(jobs, 2)
    assert send(jobs, concurrency=slot("k", 3)).job.state is AVAILABLE
    check_keys(jobs)


def test_within_a_key_the_more_urgent_job_comes_first(jobs: Jobs) -> None:
    send(jobs, concurrency=slot())
    late, urgent, middle = (send(jobs, concurrency=slot(), priority=p).job.id for p in (5, -5, 0))
    order = []
    for _ in range(4):
        grant = jobs.take()
        order.append(grant.id)
        jobs.settle(done(grant))
    assert order[1:] == [urgent, middle, late]


def test_blocked_jobs_count_as_waiting_for_the_limit_of_a_queue(jobs: Jobs) -> None:
    line(jobs, 2)
    jobs.limit("q", 3)
    line(jobs, 1)
    (outcome,) = jobs.enqueue_all(new_job(concurrency=slot()))
    assert reason(outcome) == "queue_full"
    check_keys(jobs)


# -- ways out and back -----------------------------------------------------------------------------------------------------

OUT: dict[str, tuple[Callable[[Jobs, Granted], Any], State]] = {
    "success": (lambda jobs, grant: jobs.settle(done(grant)), State.SUCCEEDED),
    "failure for good": (lambda jobs, grant: jobs.settle(failed(grant, retry=False)), State.DEAD),
    "failure, later again": (lambda jobs, grant: jobs.settle(failed(grant, delay=30)), State.SCHEDULED),
    "unknown": (lambda jobs, grant: jobs.settle(unknown(grant)), State.UNKNOWN),
    "released for later": (lambda jobs, grant: jobs.settle(released(grant, delay=30)), State.SCHEDULED),
    "lease lost": (lambda jobs, grant: (jobs.move(61), jobs.abandon()), State.SCHEDULED),
    "cancelled while it ran": (
        lambda jobs, grant: (jobs.ask_to_cancel(grant.id), jobs.settle(failed(grant))),
        State.CANCELLED,
    ),
    "cancelled, reached nobody": (
        lambda jobs, grant: (jobs.ask_to_cancel(grant.id), jobs.give_back(grant)),
        State.CANCELLED,
    ),
}


@pytest.mark.parametrize("name", list(OUT))
def test_who_leaves_its_slot_lets_the_next_in(jobs: Jobs, name: str) -> None:
    """hatchet#4494, pgqueuer#474/#475, solid_queue#546 (scenario 20): no way out may leak a slot."""
    out, state = OUT[name]
    ids = line(jobs, 3)
    out(jobs, jobs.take())
    assert in_order(jobs, ids) == [state, AVAILABLE, BLOCKED]
    check_keys(jobs)


@pytest.mark.parametrize(
    "back",
    [
        lambda jobs, grant: jobs.settle(released(grant)),
        lambda jobs, grant: jobs.settle(failed(grant, delay=0)),
        lambda jobs, grant: jobs.give_back(grant),
    ],
)
def test_who_is_available_again_at_once_keeps_its_slot(jobs: Jobs, back: Callable[[Jobs, Granted], Any]) -> None:
    ids = line(jobs, 2)
    back(jobs, jobs.take())
    assert in_order(jobs, ids) == [AVAILABLE, BLOCKED]
    check_keys(jobs)


def test_a_retry_comes_back_to_its_place_in_line(jobs: Jobs) -> None:
    first, second, third = line(jobs, 3)
    jobs.settle(failed(jobs.take(), delay=30))
    running = jobs.take()
    assert running.id == second
    jobs.move(31)
    assert jobs.promote() == 1
    assert in_order(jobs, [first, second, third]) == [BLOCKED, RUNNING, BLOCKED]
    check_keys(jobs)
    jobs.settle(done(running))
    assert in_order(jobs, [first, second, third]) == [AVAILABLE, State.SUCCEEDED, BLOCKED]


def test_delayed_jobs_stand_apart_until_they_are_due(jobs: Jobs) -> None:
    early = [send(jobs, concurrency=slot("k", 2), delay=30).job.id for _ in range(3)]
    assert send(jobs, concurrency=slot("k", 2)).job.state is AVAILABLE
    jobs.move(31)
    assert jobs.promote() == 3
    assert in_order(jobs, early) == [AVAILABLE, BLOCKED, BLOCKED]
    assert jobs.woken[-1] == {("q", "t", 1): 1}
    check_keys(jobs)


@pytest.mark.parametrize("place", [0, 1])
def test_cancelling_who_holds_or_waits_lets_the_next_in(jobs: Jobs, place: int) -> None:
    ids = line(jobs, 3)
    good(operate(jobs, control.cancel, ids[place]))
    expected = [AVAILABLE, BLOCKED]
    assert in_order(jobs, [one for one in ids if one != ids[place]]) == expected
    assert jobs.job(ids[place]).state is State.CANCELLED
    check_keys(jobs)


def test_cancelling_a_running_job_frees_its_slot_when_it_ends(jobs: Jobs) -> None:
    ids = line(jobs, 2)
    grant = jobs.take()
    good(operate(jobs, control.cancel, grant.id))
    assert in_order(jobs, ids) == [RUNNING, BLOCKED]
    jobs.settle(released(grant))
    assert in_order(jobs, ids) == [State.CANCELLED, AVAILABLE]


def test_an_operators_retry_comes_to_the_line(jobs: Jobs) -> None:
    first, second = line(jobs, 2)
    jobs.settle(failed(jobs.take(), retry=False))
    outcome = good(operate(jobs, control.retry, first))
    assert (outcome.job.state, jobs.job(first).state) == (BLOCKED, BLOCKED)
    again = good(operate(jobs, control.retry, first))
    assert (again.replayed, again.job.state) == (True, BLOCKED)
    jobs.settle(done(jobs.take()))
    assert in_order(jobs, [first, second]) == [AVAILABLE, State.SUCCEEDED]
    jobs.settle(failed(jobs.take(), retry=False))
    outcome = good(operate(jobs, control.retry, first))
    assert (outcome.job.state, jobs.job(first).state) == (AVAILABLE, AVAILABLE)
    check_keys(jobs)


def test_a_verdict_that_retries_comes_to_the_line(jobs: Jobs) -> None:
    first, second = line(jobs, 2)
    jobs.settle(unknown(jobs.take()))
    outcome = good(operate(jobs, control.reconcile, first, verdict=Verdict.RETRY, evidence=b"1"))
    assert outcome.job.state is BLOCKED
    good(operate(jobs, control.cancel, second))
    assert jobs.job(first).state is AVAILABLE
    check_keys(jobs)


def test_bulk_actions_keep_the_lines(jobs: Jobs) -> None:
    ids = line(jobs, 6, limit=2)

    def change(action: bulk.Action, wanted: Filter) -> int:
        (step,) = jobs.database.run(bulk.change, [bulk.Bulk(action, wanted, jobs.caller, "why", 100)])
        check_keys(jobs)
        return int(step.changed)

    assert change(bulk.Action.CANCEL, Filter(queue="q", state=AVAILABLE)) == 2
    assert in_order(jobs, ids) == [State.CANCELLED] * 2 + [AVAILABLE] * 2 + [BLOCKED] * 2
    assert change(bulk.Action.CANCEL, Filter(queue="q", state=BLOCKED)) == 2
    assert change(bulk.Action.RETRY, Filter(queue="q")) == 4
    assert in_order(jobs, ids) == [BLOCKED] * 2 + [AVAILABLE] * 2 + [BLOCKED] * 2
    assert change(bulk.Action.CANCEL, Filter(queue="q")) == 6
    assert change(bulk.Action.PURGE, Filter(queue="q")) == 6
    assert jobs.rows(job_limits) == jobs.rows(job_slots) == []


def test_a_key_is_forgotten_with_its_last_job(jobs: Jobs) -> None:
    line(jobs, 2)
    send(jobs, concurrency=slot("other"), queue="other")
    for _ in range(2):
        jobs.settle(done(jobs.take()))
    jobs.move(90 * 86_400)
    jobs.purge()
    assert [bytes(row.name) for row in jobs.rows(job_limits)] == [b"other"]
    check_keys(jobs)
    assert send(jobs, concurrency=slot()).job.state is AVAILABLE
    check_keys(jobs)


# -- late comers and lies --------------------------------------------------------------------------------------------------


def test_a_holder_that_completes_late_and_twice_releases_its_slot_once(jobs: Jobs) -> None:
    """rails/solid_queue PR #761 (scenario 1): a job limited to one ran eleven times over."""
    jobs.host.set(jobs_backoff_seconds=[0.0])
    first, second, third = line(jobs, 3)
    late = jobs.take()
    jobs.move(61)
    jobs.abandon()
    running = jobs.take()
    assert (running.id, running.fence) == (first, 2), "it kept its slot: nothing to wait for before the next attempt"
    for _ in range(2):
        (outcome,) = jobs.settle_all(done(late))
        assert reason(outcome) == "superseded"
        assert in_order(jobs, [first, second, third]) == [RUNNING, BLOCKED, BLOCKED]
        check_keys(jobs)
    jobs.settle(done(running))
    assert jobs.settle(done(running)).replayed
    assert in_order(jobs, [first, second, third]) == [State.SUCCEEDED, AVAILABLE, BLOCKED]
    check_keys(jobs)


def test_a_lapsed_holder_that_waits_for_its_retry_holds_nothing(jobs: Jobs) -> None:
    """Scenario 1 with a pause: another job has the slot when the first worker comes back."""
    first, second, third = line(jobs, 3)
    late = jobs.take()
    jobs.move(61)
    jobs.abandon()
    assert jobs.take().id == second
    for _ in range(2):
        (outcome,) = jobs.settle_all(done(late))
        assert reason(outcome) == "expired"
        assert in_order(jobs, [first, second, third]) == [SCHEDULED, RUNNING, BLOCKED]
        check_keys(jobs)


def test_a_place_that_its_job_does_not_confirm_takes_no_slot_and_is_mended(jobs: Jobs) -> None:
    """Scenario 20: what holds is derived from the jobs' own rows. Here somebody changed and deleted rows by hand."""
    ids = line(jobs, 5)
    jobs.update(jobs_table, jobs_table.c.id == ids[0], state=int(State.DEAD))
    jobs.update(jobs_table, jobs_table.c.id == ids[1], state=int(State.DEAD))

    def lose(tx: Tx, commands: Any) -> Any:
        tx.conn.execute(delete(jobs_table).where(jobs_table.c.id == ids[2]))
        return commands

    jobs.database.run(lose, [None])
    newest = send(jobs, concurrency=slot()).job
    assert [states(jobs).get(one) for one in (*ids[3:], newest.id)] == [AVAILABLE, BLOCKED, BLOCKED]
    places = {bytes(row.job_id): Place(row.place) for row in jobs.rows(job_slots)}
    assert places == {
        ids[0]: Place.HOLDING, ids[1]: Place.APART, ids[3]: Place.HOLDING, ids[4]: Place.WAITING, newest.id: Place.WAITING,
    }  # fmt: skip


# -- claim -----------------------------------------------------------------------------------------------------------------


def test_a_round_is_given_what_its_own_results_have_unblocked(jobs: Jobs) -> None:
    """Also where this process believes the head of the flow to be further on."""
    ids = line(jobs, 3)
    jobs.move(1)
    for _ in range(4):
        jobs.enqueue(priority=3)
    grant = jobs.take()
    assert jobs.take().priority == 3  # the head is seen further on
    order = [grant.id]
    for _ in range(2):
        (worked,) = jobs.database.run(work, [Round(Settle((done(grant),), jobs.caller), jobs.wanted("q"))])
        (grant,) = good(worked.claimed).grants
        order.append(grant.id)
        check_keys(jobs)
    assert order == ids


def test_what_is_unblocked_is_told_to_waiting_claims(jobs: Jobs) -> None:
    line(jobs, 1)
    send(jobs, "elsewhere", "u", concurrency=slot())
    grant = jobs.take()
    jobs.woken.clear()
    jobs.settle(done(grant))
    assert jobs.woken == [{("elsewhere", "u", 1): 1}]


# -- with other keys -------------------------------------------------------------------------------------------------------


def test_replace_moves_a_job_from_one_line_to_another(jobs: Jobs) -> None:
    holder = send(jobs, concurrency=slot("a"), unique=unique("u")).job
    behind_a = send(jobs, concurrency=slot("a")).job
    before_b = send(jobs, concurrency=slot("b")).job
    newer = send(jobs, concurrency=slot("b"), unique=unique("u", REPLACE)).job
    assert (newer.id, newer.state) == (holder.id, BLOCKED)
    assert in_order(jobs, [behind_a.id, before_b.id, holder.id]) == [AVAILABLE, AVAILABLE, BLOCKED]
    check_keys(jobs)
    out = send(jobs, unique=unique("u", REPLACE)).job
    assert (out.id, out.state, out.marks & Mark.CONCURRENCY) == (holder.id, AVAILABLE, 0)
    check_keys(jobs)
    inn = send(jobs, concurrency=slot("a", 2), unique=unique("u", REPLACE)).job
    assert (inn.id, inn.state) == (holder.id, AVAILABLE)
    check_keys(jobs)


def test_replace_keeps_a_jobs_place_in_its_line(jobs: Jobs) -> None:
    head = send(jobs, concurrency=slot()).job
    mine = send(jobs, concurrency=slot(), unique=unique("u")).job
    other = send(jobs, concurrency=slot()).job
    assert send(jobs, concurrency=slot(), unique=unique("u", REPLACE), payload=b"2").job.state is BLOCKED
    jobs.settle(done(jobs.take()))
    assert in_order(jobs, [head.id, mine.id, other.id]) == [State.SUCCEEDED, AVAILABLE, BLOCKED]
    urgent = send(jobs, concurrency=slot(), unique=unique("u", REPLACE), priority=9).job
    assert in_order(jobs, [urgent.id, other.id]) == [BLOCKED, AVAILABLE], "its new priority counts"
    check_keys(jobs)


def test_putting_off_a_debounced_job_frees_its_slot(jobs: Jobs) -> None:
    first = send(jobs, concurrency=slot(), debounce=debounce("d")).job
    jobs.move(11)
    jobs.promote()
    other = send(jobs, concurrency=slot()).job
    assert in_order(jobs, [first.id, other.id]) == [AVAILABLE, BLOCKED]
    assert send(jobs, concurrency=slot(), debounce=debounce("d")).job.state is SCHEDULED
    assert in_order(jobs, [first.id, other.id]) == [SCHEDULED, AVAILABLE]
    check_keys(jobs)
    jobs.move(11)
    jobs.promote()
    assert jobs.job(first.id).state is BLOCKED
    assert send(jobs, concurrency=slot(), debounce=debounce("d")).job.state is SCHEDULED
    check_keys(jobs)


@pytest.mark.parametrize("second", [{"unique": unique("u")}, {"unique": unique("u", REPLACE)}])
def test_a_key_to_which_nobody_came_leaves_no_trace(jobs: Jobs, second: dict[str, Any]) -> None:
    send(jobs, unique=unique("u"), concurrency=slot("old"))
    send(jobs, concurrency=slot("new"), **second)
    check_keys(jobs)
    jobs.enqueue_all(new_job(unique=unique("w")), new_job(unique=unique("w"), concurrency=slot("never")))
    check_keys(jobs)


# -- told ------------------------------------------------------------------------------------------------------------------


def test_explain_tells_who_holds_the_key_and_how_many_are_ahead(jobs: Jobs) -> None:
    ids = line(jobs, 4, limit=2)
    grant = jobs.take()
    explained = good(jobs.database.read(explain, Explain(ids[3], principal("k"))))
    reason_ = explained.reasons[0]
    assert reason_.code == "key_held"
    assert (reason_.evidence.key, reason_.evidence.limit, reason_.evidence.ahead) == ("k", 2, 1)
    assert [(one.id, one.state, one.expires_at) for one in reason_.evidence.holders] == [
        (ids[0], RUNNING, grant.expires_at),
        (ids[1], AVAILABLE, None),
    ]
    send(jobs, "hidden", concurrency=slot("h"))
    mine = send(jobs, "open", concurrency=slot("h")).job
    explained = good(jobs.database.read(explain, Explain(mine.id, principal("k", "open"))))
    assert explained.reasons[0].evidence.holders == ()


def test_lists_and_single_jobs_are_told_with_their_keys(jobs: Jobs) -> None:
    plain = jobs.enqueue()
    keyed = send(jobs, concurrency=slot("é", 3), unique=unique("u 😀")).job
    put_off = send(jobs, debounce=debounce("d")).job
    page = jobs.database.read(inspect.list_jobs, inspect.Listing(Filter(), principal("k")))
    told = {job.id: job.keys for job in page.jobs}
    assert told[plain.id] == (told[plain.id].__class__)()
    assert (told[keyed.id].concurrency, told[keyed.id].unique) == (("é", 3), ("u 😀", "finished"))
    assert told[put_off.id].debounce == ("d", put_off.created_at + 100_000_000)
    for job_id, keys in told.items():
        assert good(jobs.database.read(inspect.get, inspect.Get(job_id, principal("k")))).job.keys == keys


def test_where_locks_are_local_every_change_at_a_key_is_written_at_the_key(jobs: Jobs) -> None:
    """Galera: two nodes hold "the same" lock at once. Only rows that both have written make one of them fail at its COMMIT."""
    jobs.database.dialect.locks_are_local = True
    changes: list[Callable[[], Any]] = [
        lambda: line(jobs, 1),
        lambda: line(jobs, 1),
        lambda: jobs.settle(done(jobs.take())),
        lambda: jobs.settle(failed(jobs.take(), delay=30)),
        lambda: (jobs.move(31), jobs.promote()),
        lambda: (jobs.take(), jobs.move(61), jobs.abandon()),
        lambda: operate(jobs, control.cancel, next(key for key, state in states(jobs).items() if state is SCHEDULED)),
        lambda: operate(jobs, control.retry, next(key for key, at in states(jobs).items() if at is State.CANCELLED)),
        lambda: send(jobs, concurrency=slot(), unique=unique("u")),
        lambda: send(jobs, unique=unique("u", REPLACE)),
    ]
    turn = 0
    for number, change in enumerate(changes):
        change()
        (key,) = jobs.rows(job_limits)
        assert key.turn > turn or number == 0, number
        turn = key.turn
    check_keys(jobs)


# -- cost ------------------------------------------------------------------------------------------------------------------


def test_a_long_line_is_looked_at_by_its_index_alone(
    fresh_migrated_url: str, open_database: Callable[[str], Database]
) -> None:
    """Law 7: whoever is next is found without a look at those behind, and a holder without a look at those who wait."""
    jobs = Jobs(open_database(fresh_migrated_url), Host())
    for _ in range(5):
        jobs.enqueue_all(*(new_job(concurrency=slot()) for _ in range(1000)))
    analyse(jobs)
    digest = slot().digest
    following = plans(jobs, lambda tx: lines.select_next(tx, {digest: 2}), job_slots.name)
    held = plans(jobs, lambda tx: lines.select_held(tx, [digest]), job_slots.name)
    assert (len(following), len(held)) == (1, 1)
    for plan in following + held:
        assert "job_slots_line" in plan, plan
        assert f"Seq Scan on {jobs_table.name}" not in plan, plan
    for sorting in ("filesort", "TEMP B-TREE", "Sort"):
        assert sorting not in following[0], following[0]


def test_a_change_at_a_line_sends_as_many_statements_with_few_waiting_as_with_many(jobs: Jobs) -> None:
    counts = []
    for waiting in (2, 300):
        jobs.enqueue_all(*(new_job(queue=f"q{waiting}", concurrency=slot(f"k{waiting}")) for _ in range(waiting)))
        grant = jobs.take(f"q{waiting}")
        counts.append(len(sent(jobs, lambda grant=grant: jobs.settle(done(grant)))))  # type: ignore[misc]
    assert counts[0] == counts[1] < 20
