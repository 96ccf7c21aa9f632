"""Races of keys: two real transactions at once, round after round, on real servers.

`TENURE_TEST_ROUNDS` says how many rounds each race is run; a few hundred keep the suite quick, 10,000 are for a night.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from app.errors import Refusal
from app.primitives.jobs.model import WAITING, Control, Enqueued, Granted, State
from app.primitives.jobs.ops import control
from app.primitives.jobs.tables import job_contents, job_slots, job_uniques
from app.primitives.jobs.tables import jobs as jobs_table
from tests.primitives.jobs.driving import Jobs, done, failed, good, new_job, reason
from tests.primitives.jobs.keyed import KEEP, REPLACE, check_keys, debounce, send, slot, states, unique
from tests.primitives.jobs.test_races import SECONDS, together

pytestmark = pytest.mark.engines("mariadb", "mysql", "postgresql")
ROUNDS = int(os.environ.get("TENURE_TEST_ROUNDS", "200"))

Replica = Callable[[], Jobs]
Body = Callable[[int], Any]


def race(one: tuple[Jobs, Body], two: tuple[Jobs, Body], between: Callable[[int, Any, Any], None]) -> None:
    """In every round both bodies at the same moment, each in the thread of its process; then `between` with what they gave."""
    barrier = threading.Barrier(2)
    given: list[Any] = [None, None]

    def acting(place: int, process: Jobs, body: Body) -> Callable[[], None]:
        def act() -> None:
            try:
                for number in range(ROUNDS):
                    barrier.wait(SECONDS)
                    given[place] = body(number)
                    barrier.wait(SECONDS)
                    if place == 0:
                        between(number, *given)
            except BaseException:
                barrier.abort()
                raise
            finally:
                process.database.close()

        return act

    together(acting(0, *one), acting(1, *two), seconds=max(SECONDS, ROUNDS))


def drain(jobs: Jobs) -> int:
    """Do all the work there is; how much it was."""
    count = 0
    while grants := jobs.claim(limit=50):
        for outcome in jobs.settle_all(*(done(grant) for grant in grants)):
            good(outcome)
        count += len(grants)
    return count


def check_drained(jobs: Jobs) -> None:
    drain(jobs)
    left = Counter(states(jobs).values())
    assert not left.keys() & {State.BLOCKED, State.AVAILABLE, State.RUNNING, State.SCHEDULED}, left
    check_keys(jobs)


def test_an_enqueue_against_the_completion_of_the_holder_leaves_nobody_blocked(jobs: Jobs, replica: Replica) -> None:
    """solid_queue PR #689 (scenario 21): the enqueue decides "blocked" while the finisher finds nobody to unblock."""
    other = replica()
    send(jobs, concurrency=slot())
    running = [jobs.take()]

    def between(_: int, made: Enqueued, __: Any) -> None:
        (running[0],) = jobs.claim()  # one slot, one job left: it must be there to be taken
        assert running[0].id == made.job.id

    race(
        (jobs, lambda _: send(jobs, concurrency=slot())),
        (other, lambda _: other.settle(done(running[0]))),
        between,
    )
    jobs.settle(done(running[0]))
    check_drained(jobs)


@pytest.mark.parametrize("conflict", [KEEP, REPLACE])
def test_of_two_enqueues_with_one_unique_key_one_makes_the_job_and_both_are_given_it(
    jobs: Jobs, replica: Replica, conflict: Any
) -> None:
    other = replica()

    def enqueue(process: Jobs, payload: bytes) -> Body:
        return lambda number: send(process, unique=unique(f"k{number}", conflict), payload=payload)

    def between(_: int, one: Enqueued, two: Enqueued) -> None:
        assert one.job.id == two.job.id
        assert sorted((one.deduplicated, two.deduplicated)) == [False, True]
        (row,) = jobs.rows(job_contents, job_contents.c.job_id == one.job.id)
        newest = one if one.deduplicated == (conflict is REPLACE) else two
        assert row.payload == (b"1" if newest is one else b"2")

    race((jobs, enqueue(jobs, b"1")), (other, enqueue(other, b"2")), between)
    assert len(jobs.rows(job_uniques)) == ROUNDS
    check_drained(jobs)


def test_a_debounced_enqueue_against_the_claim_is_seen_by_the_run_or_makes_the_next(
    jobs: Jobs, replica: Replica
) -> None:
    """Never a second job for one window, never a payload that was answered and is seen by no run."""
    other = replica()
    ran: list[bytes] = []

    def enqueue(number: int) -> Enqueued:
        return send(jobs, debounce=debounce("k", 10, 10), payload=str(number).encode())

    send(jobs, debounce=debounce("k", 10, 10), payload=b"first")
    jobs.move(11)
    other.move(11)
    jobs.promote()

    def between(number: int, answer: Enqueued, grants: tuple[Granted, ...]) -> None:
        ran.extend(grant.payload for grant in grants)
        for grant in grants:
            assert jobs.job(grant.id).state is State.RUNNING
            good(jobs.settle(done(grant)))
            assert answer.deduplicated == (grant.id == answer.job.id)
            if answer.deduplicated:
                assert grant.payload == str(number).encode(), "what was answered is what the run sees"
        for process in (jobs, other):
            process.move(11)
        jobs.promote()
        waiting = jobs.rows(jobs_table, jobs_table.c.state == State.AVAILABLE)
        assert len(waiting) == (0 if grants and answer.deduplicated else 1)
        if not waiting:
            send(jobs, debounce=debounce("k", 10, 10), payload=b"again")
            for process in (jobs, other):
                process.move(11)
            jobs.promote()

    race((jobs, enqueue), (other, lambda _: other.claim()), between)
    check_drained(jobs)
    assert ran


def test_an_abandonment_against_a_settlement_gives_the_slot_away_once(jobs: Jobs, replica: Replica) -> None:
    """Scenarios 1 and 20: the holder's lease ends while its worker completes."""
    sweeper = replica()
    sweeper.move(61)  # to this process the lease has ended, to the worker's it has not
    for process in (jobs, sweeper):
        process.host.set(jobs_max_lease_losses=1)
    send(jobs, concurrency=slot())
    running = [jobs.take()]
    ends: Counter[State] = Counter()

    def settle(_: int) -> Any:
        (outcome,) = jobs.settle_all(done(running[0]))
        return outcome

    def between(_: int, outcome: Any, __: Any) -> None:
        ended = jobs.job(running[0].id).state
        ends[ended] += 1
        assert (ended is State.SUCCEEDED) == (not isinstance(outcome, Refusal))
        if isinstance(outcome, Refusal):
            assert ended is State.DEAD
            assert reason(outcome) == "expired"
        (running[0],) = jobs.claim()
        send(jobs, concurrency=slot())

    send(jobs, concurrency=slot())
    race((jobs, settle), (sweeper, lambda _: sweeper.abandon()), between)
    jobs.settle(done(running[0]))
    check_drained(jobs)
    assert sum(ends.values()) == ROUNDS


def test_a_cancel_against_the_promotion_of_the_same_job_leaves_no_slot_behind(jobs: Jobs, replica: Replica) -> None:
    sweeper = replica()
    sweeper.move(61)
    made: list[bytes] = [send(jobs, concurrency=slot(), delay=60).job.id]

    def cancel(_: int) -> Any:
        (outcome,) = jobs.database.run(control.cancel, [Control(made[-1], jobs.caller, reason="because")])
        return good(outcome)

    def between(number: int, _: Any, __: Any) -> None:
        assert jobs.job(made[-1]).state is State.CANCELLED
        held = [row for row in jobs.rows(job_slots) if row.place != 2]
        assert not held
        if number % 2:  # every other round there is somebody before it, who goes meanwhile
            assert send(jobs, concurrency=slot()).job.state is State.AVAILABLE
            jobs.settle(done(jobs.take()))
        made.append(send(jobs, concurrency=slot(), delay=60).job.id)

    race((jobs, cancel), (sweeper, lambda _: sweeper.promote()), between)
    jobs.database.run(control.cancel, [Control(made[-1], jobs.caller, reason="because")])
    check_drained(jobs)


def test_a_storm_on_few_keys_passes_no_limit_and_drains(jobs: Jobs, replica: Replica) -> None:
    """rails/solid_queue#162, #531, #609 (scenario 11) with keys: what the database does to two at once reaches no caller."""
    limits = {"a": 1, "b": 2, "c": 3}
    lock = threading.Lock()
    held: Counter[str] = Counter()
    name_of: dict[bytes, str] = {}
    left = threading.Semaphore(ROUNDS)

    def enqueuer(process: Jobs, seed: int) -> None:
        dice = random.Random(seed)
        while left.acquire(blocking=False):
            names = [dice.choice("abc") for _ in range(dice.choice([1, 1, 4]))]
            news = [
                new_job(
                    concurrency=slot(name, limits[name]),
                    delay=dice.choice([None, None, 0.01]),
                    max_attempts=99,
                    unique=unique(f"{dice.randrange(30)}", dice.choice([KEEP, REPLACE]))
                    if dice.random() < 0.3
                    else None,
                    payload=name.encode(),
                )
                for name in names
            ]
            process.enqueue_all(*news)

    def worker(process: Jobs, seed: int) -> None:
        dice = random.Random(seed)
        idle = 0
        while idle < 20:
            process.promote()
            grants = process.claim(limit=3)
            idle = 0 if grants else idle + 1
            for grant in grants:
                name = grant.payload.decode()
                with lock:
                    held[name] += 1
                    assert held[name] <= limits[name], name
                    name_of[grant.id] = name
            for grant in grants:
                with lock:
                    held[name_of[grant.id]] -= 1
            items = [
                done(grant) if dice.random() < 0.7 else failed(grant, delay=dice.choice([0, 0.01])) for grant in grants
            ]
            for outcome in process.settle_all(*items) if items else ():
                good(outcome)

    def canceller(process: Jobs, seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(ROUNDS // 10):
            ids = [bytes(row.id) for row in process.rows(jobs_table, jobs_table.c.state.in_(WAITING))]
            if ids:
                process.database.run(control.cancel, [Control(dice.choice(ids), process.caller, reason="because")])
            process.promote()

    roles = [enqueuer, enqueuer, worker, worker, worker, canceller]

    processes: list[Jobs] = []

    def acting(role: Callable[[Jobs, int], None], seed: int) -> Callable[[], None]:
        process = replica()
        processes.append(process)

        def act() -> None:
            try:
                role(process, seed)
            finally:
                process.database.close()

        return act

    together(*(acting(role, seed) for seed, role in enumerate(roles)), seconds=max(SECONDS, ROUNDS))
    met = sum((Counter(process.database.faults) for process in processes), Counter())
    # promote's scan locks the entry behind the last due one: were that a blocked job's, every tenth unit would meet in a ring
    assert met["retry"] <= max(5, ROUNDS // 20), met
    jobs.move(5)
    while jobs.promote() or drain(jobs):
        check_keys(jobs)
    check_drained(jobs)
