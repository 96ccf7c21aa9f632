"""Races of jobs: real threads, real servers, each thread with a process's own database and memory."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
from sqlalchemy import Connection, event, make_url, text

from app.db import engines
from app.db.database import Database
from app.errors import Refusal
from app.primitives.jobs.model import Granted, State
from app.primitives.jobs.ops import flows
from app.primitives.jobs.store import due, work
from app.primitives.jobs.tables import job_keys
from app.primitives.jobs.tables import jobs as jobs_table
from tests.primitives.jobs.driving import Host, Jobs, done, failed, good, new_job, reason, released

SERVERS = ("mariadb", "mysql", "postgresql")
on_servers = pytest.mark.engines(*SERVERS)
SECONDS = 60

Replica = Callable[[], Jobs]


def together(*bodies: Callable[[], Any], seconds: float = SECONDS) -> list[Any]:
    """Run the bodies at the same moment, each in a thread of its own; their results, or the first exception. Each must end
    within `seconds`.
    """
    barrier = threading.Barrier(len(bodies))

    def run(body: Callable[[], Any]) -> Any:
        barrier.wait(SECONDS)
        return body()

    with ThreadPoolExecutor(len(bodies)) as pool:
        running: list[Future[Any]] = [pool.submit(run, body) for body in bodies]
        return [one.result(seconds) for one in running]


class History:
    """What each worker was given and what it was told, across all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.fences: dict[bytes, list[int]] = defaultdict(list)
        self.tokens: set[str] = set()
        self.done: Counter[bytes] = Counter()
        self.made: list[bytes] = []

    def given(self, grants: Sequence[Granted]) -> None:
        with self.lock:
            for grant in grants:
                self.fences[grant.id].append(grant.fence)
                assert grant.token not in self.tokens
                self.tokens.add(grant.token)

    def finished(self, grants: Sequence[Granted], outcomes: Sequence[Any]) -> None:
        with self.lock:
            for grant, outcome in zip(grants, outcomes, strict=True):
                if not isinstance(outcome, Refusal) and outcome.state is State.SUCCEEDED:
                    self.done[grant.id] += 1

    @property
    def ended(self) -> int:
        with self.lock:
            return len(self.done)


def storm(processes: Sequence[Jobs], *, claimers: int, enqueuers: int, each: int, limit: int) -> History:
    """Enqueue, claim, renew, settle and sweep at once until every job has succeeded."""
    history, total, stop = History(), enqueuers * each, threading.Event()

    def enqueuer(process: Jobs, name: int) -> None:
        made = 0
        while made < each:
            batch = [
                new_job("q", f"t{number % 3}", max_attempts=999, key=f"{name}-{number}")
                for number in range(made, min(made + 7, each))
            ]
            outcomes = [good(one) for one in process.enqueue_all(*batch)]
            with history.lock:
                history.made += [one.job.id for one in outcomes]
            made += len(batch)

    def claimer(process: Jobs, name: int) -> None:
        rounds = 0
        while history.ended < total and rounds < 5_000 and not stop.is_set():
            rounds += 1
            grants = process.claim(limit=limit)
            history.given(grants)
            if not grants:
                process.promote()
                continue
            process.beat(grants[0])
            items = [
                released(grant)
                if number % 5 == 1 and grant.fence < 3
                else failed(grant, delay=0)
                if number % 5 == 2 and grant.fence < 3
                else done(grant)
                for number, grant in enumerate(grants)
            ]
            history.finished(grants, process.settle_all(*items))

    def sweeper(process: Jobs) -> None:
        while history.ended < total and not stop.is_set():
            process.abandon()
            process.promote()
            process.purge()

    roles: list[Callable[[Jobs], None]] = [
        *(lambda process, name=name: enqueuer(process, name) for name in range(enqueuers)),  # type: ignore[misc]
        *(lambda process, name=name: claimer(process, name) for name in range(claimers)),  # type: ignore[misc]
        sweeper,
        sweeper,
    ]

    def acting(role: Callable[[Jobs], None], process: Jobs) -> Callable[[], None]:
        def act() -> None:
            try:
                role(process)
            except BaseException:
                stop.set()
                raise
            finally:
                process.database.close()

        return act

    together(*(acting(role, processes[number % len(processes)]) for number, role in enumerate(roles)))
    return history


def check(history: History, jobs: Jobs, total: int) -> None:
    assert len(history.made) == len(set(history.made)) == total
    assert set(history.done) == set(history.made), "every acknowledged job ended"
    assert set(history.done.values()) == {1}, "and was settled once"
    rows = {row.id: row for row in jobs.rows(jobs_table)}
    assert set(rows) == set(history.made)
    for job_id, row in rows.items():
        assert row.state == State.SUCCEEDED
        # each grant had a fence of its own, and every fence was given to somebody
        assert sorted(history.fences[job_id]) == list(range(1, row.fence + 1))
    assert len(jobs.rows(job_keys)) == total


@on_servers
def test_claimers_enqueuers_settlers_and_sweeps_at_once_lose_nothing_and_give_nothing_twice(
    jobs: Jobs, replica: Replica
) -> None:
    """rails/solid_queue#162, #531, #609, Laravel #7046 (scenario 11): deadlocks between claim, enqueue and delete.

    What the database does to two at once is counted in `faults` and never reaches a caller.
    """
    history = storm([jobs, *(replica() for _ in range(11))], claimers=8, enqueuers=2, each=80, limit=10)
    check(history, jobs, 160)


@pytest.mark.engines("sqlite")
def test_eight_threads_on_the_embedded_database_meet_no_busy_and_lose_no_lease(jobs: Jobs) -> None:
    """solid_queue#385, #309, #324 (scenario 43): BUSY on a heartbeat, and a healthy process is declared dead."""
    history = storm([jobs], claimers=4, enqueuers=2, each=30, limit=10)
    check(history, jobs, 60)
    assert all(row.lease_losses == 0 for row in jobs.rows(jobs_table))


@on_servers
def test_without_skip_locked_the_plain_lock_is_still_correct(jobs: Jobs, replica: Replica) -> None:
    processes = [jobs, *(replica() for _ in range(6))]
    for process in processes:
        process.database.dialect.skip_locked = False
    history = storm(processes, claimers=4, enqueuers=1, each=60, limit=5)
    check(history, jobs, 60)


def test_claimers_that_start_together_share_the_work_and_none_gets_what_another_has(
    jobs: Jobs, replica: Replica
) -> None:
    """ShedLock#1968 (scenario 15): two that acquire within the same millisecond: one winner each."""
    processes = [jobs] + [replica() for _ in range(5)]
    for _ in range(3):
        jobs.enqueue_all(*(new_job("q", f"t{number % 2}") for number in range(30)))

        def claim(process: Jobs) -> Callable[[], list[Granted]]:
            def act() -> list[Granted]:
                got: list[Granted] = []
                while more := process.claim(limit=4):
                    got += more
                process.database.close()
                return got

            return act

        given = [grant.id for got in together(*(claim(process) for process in processes)) for grant in got]
        assert len(given) == len(set(given)) == 30


def test_two_abandon_sweeps_at_once_abandon_each_attempt_once(jobs: Jobs, replica: Replica) -> None:
    jobs.host.set(jobs_max_lease_losses=99)
    processes = [jobs, replica(), replica()]
    jobs.enqueue_all(*(new_job(max_attempts=99) for _ in range(60)))
    grants = jobs.claim(limit=60, lease=10)
    for process in processes:
        process.database.clock.shift_micros += 11_000_000

    def sweep(process: Jobs) -> Callable[[], None]:
        def act() -> None:
            while process.abandon(most=20):
                pass
            process.database.close()

        return act

    together(*(sweep(process) for process in processes))
    for grant in grants:
        assert jobs.kinds(grant.id) == ["abandoned"]
    assert {(row.state, row.lease_losses, row.attempt) for row in jobs.rows(jobs_table)} == {(State.SCHEDULED, 1, 1)}


# -- held in one connection, met by another --------------------------------------------------------------------------------


@pytest.fixture
def side(jobs: Jobs, migrated_url: str) -> Any:
    """A connection past the service, for holding locks."""
    url = make_url(migrated_url)
    with engines.make(jobs.database.dialect, url, "write").connect() as connection:
        yield connection


def waiters(connection: Connection) -> int:
    """How many sessions wait for a row at this moment."""
    if connection.dialect.name == "postgresql":
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    elif connection.dialect.is_mariadb:  # type: ignore[attr-defined]
        query = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    else:
        query = "SELECT count(*) FROM performance_schema.data_lock_waits"
    return int(connection.execute(text(query)).scalar_one())


def until_somebody_waits(url: str, jobs: Jobs, other: Future[Any]) -> None:
    """Return when a session waits for a row, or when `other` has found that it need not."""
    with engines.make(jobs.database.dialect, make_url(url), "read").connect() as watcher:
        for _ in range(100):
            if other.done() or waiters(watcher):
                return
            # MariaDB shows the same picture again to whoever asks within a tenth of a second
            wait([other], timeout=0.15)
    raise AssertionError("nobody came to wait for the lock")


@on_servers
@pytest.mark.parametrize("first", ["settlement", "sweep"])
def test_of_a_settlement_and_a_sweep_whoever_locks_first_wins(
    jobs: Jobs, replica: Replica, migrated_url: str, first: str
) -> None:
    """river#1302 (scenario 3): the other one waits for the row, then finds that it has nothing to write."""
    other = replica()
    jobs.enqueue()
    grant = jobs.take(lease=10)
    locked, release = threading.Event(), threading.Event()
    sweeping = jobs if first == "sweep" else other
    sweeping.database.dialect.skip_locked = False  # it waits instead of passing by
    sweeping.move(11)  # only the sweep sees the lease as ended: the worker's settlement is just in time

    def settle_(process: Jobs, op: Callable[..., Any]) -> Any:
        from app.primitives.jobs.model import Settle

        return process.database.run(op, [Settle((done(grant),), process.caller)])

    def held(op: Callable[..., Any]) -> Callable[..., Any]:
        def run(tx: Any, commands: Any) -> Any:
            outcomes = op(tx, commands)
            locked.set()
            assert release.wait(SECONDS)
            return outcomes

        return run

    from app.primitives.jobs.ops.settle import settle
    from app.primitives.jobs.ops.sweep import Batch, abandon

    with ThreadPoolExecutor(2) as pool:
        if first == "sweep":
            one = pool.submit(lambda: jobs.database.run(held(abandon), [Batch()]))
            assert locked.wait(SECONDS)
            two = pool.submit(lambda: settle_(other, settle))
        else:
            one = pool.submit(lambda: settle_(jobs, held(settle)))
            assert locked.wait(SECONDS)
            two = pool.submit(other.abandon)
        try:
            until_somebody_waits(migrated_url, jobs, two)
        finally:
            release.set()
        answers = one.result(SECONDS), two.result(SECONDS)
    row = jobs.job(grant.id)
    if first == "sweep":
        assert answers[0] == [1]
        assert reason(answers[1][0][0]) == "expired"
        assert (row.state, row.lease_losses, jobs.kinds(grant.id)) == (State.SCHEDULED, 1, ["abandoned"])
    else:
        assert good(answers[0][0][0]).state is State.SUCCEEDED
        assert answers[1] == 0
        assert (row.state, row.lease_losses, jobs.kinds(grant.id)) == (State.SUCCEEDED, 0, [])


@on_servers
def test_a_claimer_that_holds_rows_does_not_delay_another(jobs: Jobs, side: Connection) -> None:
    assert jobs.database.dialect.skip_locked
    made = [jobs.enqueue().id for _ in range(4)]
    with side.begin():
        side.execute(jobs.database.dialect.lock(jobs_table.select().where(jobs_table.c.id.in_(made[:2]))))
        assert {grant.id for grant in jobs.claim(limit=4)} == set(made[2:])
        assert jobs.database.faults == {}
    assert {grant.id for grant in jobs.claim(limit=4)} == set(made[:2])


@on_servers
def test_a_claim_of_several_types_passes_by_what_others_hold(jobs: Jobs, side: Connection) -> None:
    made = [jobs.enqueue("q", f"t{number % 2}").id for number in range(8)]
    with side.begin():
        side.execute(jobs.database.dialect.lock(jobs_table.select().where(jobs_table.c.id.in_(made[:4]))))
        assert {grant.id for grant in jobs.claim(limit=3)} <= set(made[4:])
        assert jobs.database.faults == {}


@on_servers
def test_a_claim_of_an_empty_queue_holds_up_no_enqueue(jobs: Jobs, replica: Replica) -> None:
    """gravitee-api-management #18143 (scenario 12): FOR UPDATE on what is not there, then INSERT: gap locks."""
    from app.primitives.jobs.ops.claim import claim

    other = replica()
    jobs.settle(done(take_of(jobs, jobs.enqueue().id)))

    def op(tx: Any, commands: Any) -> Any:
        outcomes = claim(tx, commands)
        assert good(outcomes[0]).grants == ()
        other.enqueue()  # would wait three seconds, then fail, if this claim held a gap
        assert other.database.faults == {}
        return outcomes

    jobs.database.run(op, [jobs.wanted(claim_id="claim-0123456789abcdef")])
    assert len(jobs.claim()) == 1


def take_of(jobs: Jobs, job_id: bytes) -> Granted:
    grant = jobs.take()
    assert grant.id == job_id
    return grant


# -- plans and locks -------------------------------------------------------------------------------------------------------


def plans(jobs: Jobs, run: Callable[[Any], Any], table: str = jobs_table.name) -> list[str]:
    """The plan of each SELECT on the jobs, or another table, that `run` sends, as the server tells it."""
    told: list[str] = []
    name = jobs.database.dialect.name
    words = {"sqlite": "EXPLAIN QUERY PLAN ", "postgresql": "EXPLAIN (COSTS OFF) "}.get(name, "EXPLAIN ")

    def explain(tx: Any, commands: Any) -> Any:
        def before(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
            if statement.lstrip().startswith("SELECT") and table in statement:
                cursor.execute(words + statement, parameters)
                names = [column[0].lower() for column in cursor.description]
                told.append(
                    "\n".join(
                        " ".join(f"{key}={value}" for key, value in zip(names, row, strict=True))
                        for row in cursor.fetchall()
                    )
                )

        event.listen(tx.conn, "before_cursor_execute", before)
        try:
            run(tx)
        finally:
            event.remove(tx.conn, "before_cursor_execute", before)
        return commands

    jobs.database.run(explain, [None])
    return told


@pytest.mark.parametrize("count", [0, 10_000])
def test_claims_and_sweeps_go_by_their_index_and_never_sort(
    fresh_migrated_url: str, open_database: Callable[[str], Database], count: int
) -> None:
    """Law 7: the cost of a claim does not grow with the backlog."""
    jobs = Jobs(open_database(fresh_migrated_url), Host())
    jobs.enqueue("q", "a")
    jobs.enqueue("q", "b")
    for start in range(0, count, 1000):
        jobs.enqueue_all(
            *(new_job("q", "ab"[number % 2], delay=number % 4 * 50) for number in range(start, start + 1000))
        )
    if count:
        analyse(jobs)
    ids: dict[str, int] = {}
    jobs.database.run(lambda tx, given: [ids.update({flow[1]: id_ for flow, id_ in flows.refresh(tx).items()})], [None])
    from app.primitives.jobs.heads import LOWEST

    one = plans(jobs, lambda tx: work.lock_heads(tx, ids["a"], 10, LOWEST))
    many = plans(
        jobs, lambda tx: work.select_heads(tx, {ids["a"]: 10, ids["b"]: 10}, dict.fromkeys(ids.values(), LOWEST))
    )
    sweeps = [
        plan
        for state in (State.SCHEDULED, State.RUNNING, State.SUCCEEDED)
        for plan in plans(jobs, lambda tx, state=state: due.lock_due(tx, state, 200))
    ]  # type: ignore[misc]
    assert (len(one), len(many), len(sweeps)) == (1, 1, 3)
    if jobs.database.dialect.name == "postgresql" and not count:
        return  # a table of one page is read as a whole, rightly
    for plan, index in [*((plan, "jobs_claim") for plan in one + many), *((plan, "jobs_due") for plan in sweeps)]:
        assert index in plan, plan
        assert "filesort" not in plan.lower(), plan
        assert "TEMP B-TREE" not in plan, plan
        assert "Sort" not in plan, plan


def analyse(jobs: Jobs) -> None:
    table, name = jobs_table.name, jobs.database.dialect.name
    statement = {"sqlite": "ANALYZE", "postgresql": f"ANALYZE {table}"}.get(name, f"ANALYZE TABLE {table}")

    def run(tx: Any, commands: Any) -> Any:
        tx.conn.exec_driver_sql(statement).close()
        return commands

    jobs.database.run(run, [None])


@pytest.mark.engines("mysql")
@pytest.mark.parametrize("number", [1, 10, 50])
def test_a_claim_locks_little_more_than_what_it_takes(
    fresh_migrated_url: str, open_database: Callable[[str], Database], number: int
) -> None:
    jobs = Jobs(open_database(fresh_migrated_url), Host())
    jobs.enqueue_all(*(new_job() for _ in range(500)))
    from app.primitives.jobs.ops.claim import claim

    seen: list[int] = []

    def op(tx: Any, commands: Any) -> Any:
        outcomes = claim(tx, commands)
        assert len(good(outcomes[0]).grants) == number
        seen.append(
            tx.conn.exec_driver_sql(
                "SELECT count(*) FROM performance_schema.data_locks WHERE LOCK_TYPE = 'RECORD' AND OBJECT_NAME = "
                f"'{jobs_table.name}'"
            ).scalar()
        )
        return outcomes

    jobs.database.run(op, [jobs.wanted(limit=number)])
    assert seen[0] <= 2 * number + 2
