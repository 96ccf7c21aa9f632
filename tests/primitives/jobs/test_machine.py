"""The job machine against a model of it: random histories of commands, repeats, lost answers, clock moves and sweeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from app.clock import micros
from app.db.metadata import metadata
from app.errors import Refusal
from app.primitives.jobs.model import Beat, Control, Granted, Job, Settled, Settlement, State, Verdict
from app.primitives.jobs.ops import control
from app.primitives.jobs.tables import job_events
from app.primitives.jobs.tables import jobs as jobs_table
from tests.primitives.jobs.driving import OUTCOMES, Host, Jobs, good, new_job, reason

BACKOFF = (20.0, 200.0)
MAX_LEASE_LOSSES, MAX_RELEASES = 3, 4
LOST = {"expired", "superseded", "settled", "cancelled", "unknown_token", "settlement_conflict"}


@dataclass
class Known:
    """What the model knows of one job."""

    id: bytes
    priority: int
    max_attempts: int
    available_at: int
    state: State
    key: str | None = None
    payload: bytes = b"{}"
    due: int | None = None
    fence: int = 0
    attempt: int = 0
    losses: int = 0
    releases: int = 0
    throttles: int = 0
    cancel: bool = False
    holder: Granted | None = None
    settled: dict[str, tuple[Settlement, Settled]] = field(default_factory=dict)


class Machine(RuleBasedStateMachine):
    """Rules act on the database and on the model; the invariants hold them against each other after every step."""

    jobs: Jobs

    def __init__(self) -> None:
        super().__init__()
        self.jobs.host.memory = Host().memory
        self.jobs.host.set(
            jobs_backoff_seconds=BACKOFF, jobs_max_lease_losses=MAX_LEASE_LOSSES, jobs_max_releases=MAX_RELEASES
        )
        empty(self.jobs)
        self.known: dict[bytes, Known] = {}
        self.grants: list[Granted] = []
        self.fences: dict[bytes, int] = {}

    # -- commands ------------------------------------------------------------------------------------------------------

    @rule(
        key=st.sampled_from([None, None, "a", "b"]),
        payload=st.sampled_from([b"1", b"2"]),
        delay=st.sampled_from([0, 0, 40]),
        priority=st.integers(-1, 1),
        max_attempts=st.integers(1, 3),
    )
    def enqueue(self, key: str | None, payload: bytes, delay: int, priority: int, max_attempts: int) -> None:
        new = new_job(key=key, payload=payload, delay=delay or None, priority=priority, max_attempts=max_attempts)
        (outcome,) = self.jobs.enqueue_all(new)
        owner = next((job for job in self.known.values() if key is not None and job.key == key), None)
        if owner is None:
            job = good(outcome).job
            assert not good(outcome).replayed
            self.known[job.id] = Known(
                job.id, priority, max_attempts, job.available_at, job.state, key=key, payload=payload, due=job.due_at
            )
            assert job.state is (State.SCHEDULED if delay else State.AVAILABLE)
        elif owner.payload == payload:
            assert (good(outcome).job.id, good(outcome).replayed) == (owner.id, True)
        else:
            assert reason(outcome) == "idempotency_conflict"

    @rule(limit=st.integers(1, 3), lease=st.sampled_from([10, 60]))
    def claim(self, limit: int, lease: int) -> None:
        ready = sorted(
            (job for job in self.known.values() if job.state is State.AVAILABLE),
            key=lambda job: (job.priority, job.available_at, job.id),
        )
        grants = self.jobs.claim(limit=limit, lease=lease)
        assert [grant.id for grant in grants] == [job.id for job in ready[:limit]]
        for grant in grants:
            job = self.known[grant.id]
            assert (grant.fence, grant.attempt) == (job.fence + 1, job.attempt + 1)
            assert grant.token not in {one.token for one in self.grants}
            job.state, job.fence, job.attempt, job.holder, job.cancel = (
                State.RUNNING,
                grant.fence,
                grant.attempt,
                grant,
                False,
            )
            job.due = grant.expires_at
            self.grants.append(grant)

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), lease=st.sampled_from([5, 90]))
    def heartbeat(self, data: st.DataObject, lease: int) -> None:
        grant = data.draw(st.sampled_from(self.grants))
        job = self.known[grant.id]
        before = self.jobs.now
        (outcome,) = self.jobs.beat_all(Beat(grant.id, grant.token, micros(lease)))
        if self.holds(job, grant, outcome, before):
            assert good(outcome).cancel_requested == job.cancel
            assert good(outcome).expires_at >= (job.due or 0)
            job.due = good(outcome).expires_at
        else:
            assert reason(outcome) in LOST

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), name=st.sampled_from(sorted(OUTCOMES)))
    def settle(self, data: st.DataObject, name: str) -> None:
        grant = data.draw(st.sampled_from(self.grants))
        job = self.known[grant.id]
        item = OUTCOMES[name](grant)
        before = self.jobs.now
        (outcome,) = self.jobs.settle_all(item)
        if grant.token in job.settled:
            first, answer = job.settled[grant.token]
            if first.digest == item.digest:
                assert outcome == replace(answer, replayed=True)
            else:
                assert reason(outcome) == "settlement_conflict"
        elif self.holds(job, grant, outcome, before):
            self.moved(job, item, name, good(outcome))
        else:
            assert reason(outcome) in LOST - {"settlement_conflict", "unknown_token"}

    def holds(self, job: Known, grant: Granted, outcome: Any, before: int) -> bool:
        """Whether the grant counted at that moment; where the lease ended during the very call, the answer says."""
        if job.state is not State.RUNNING or job.holder is not grant:
            return False
        if before < (job.due or 0) <= self.jobs.now:
            return not isinstance(outcome, Refusal)
        return before < (job.due or 0)

    def moved(self, job: Known, item: Settlement, name: str, answer: Settled) -> None:
        """What a settlement that counted has to lead to."""
        expected = State.SUCCEEDED
        if name.startswith("released"):
            job.attempt -= 1
            counter = "throttles" if name == "released for later" else "releases"
            setattr(job, counter, getattr(job, counter) + 1)
            over = getattr(job, counter) > MAX_RELEASES
            expected = (
                State.CANCELLED
                if job.cancel
                else State.DEAD
                if over
                else State.SCHEDULED
                if counter == "throttles"
                else State.AVAILABLE
            )
        elif name == "unknown":
            expected = State.UNKNOWN
        elif name.startswith("failed"):
            again = State.AVAILABLE if name.endswith("at once") else State.SCHEDULED
            dead = name == "failed for good" or job.attempt >= job.max_attempts
            expected = State.CANCELLED if job.cancel else State.DEAD if dead else again
        assert (answer.state, answer.attempt, answer.replayed) == (expected, job.attempt, False)
        job.settled[item.token] = item, answer
        job.state, job.holder, job.due = expected, None, None
        if expected is State.SCHEDULED:
            assert answer.available_at is not None
            job.available_at = job.due = answer.available_at

    @precondition(lambda self: len(self.grants) > 1)
    @rule(data=st.data(), name=st.sampled_from(sorted(OUTCOMES)))
    def use_a_foreign_token(self, data: st.DataObject, name: str) -> None:
        one, other = data.draw(st.sampled_from(self.grants)), data.draw(st.sampled_from(self.grants))
        if one.id == other.id:
            return
        (outcome,) = self.jobs.settle_all(replace(OUTCOMES[name](one), token=other.token))
        assert reason(outcome) == "unknown_token"
        (outcome,) = self.jobs.beat_all(Beat(one.id, other.token, micros(600)))
        assert reason(outcome) == "unknown_token"

    # -- operators -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(list(self.known.values())))
        outcome = self.operate(control.cancel, job)
        if job.state in (State.AVAILABLE, State.SCHEDULED):
            assert good(outcome).job.state is State.CANCELLED
            job.state, job.due = State.CANCELLED, None
        elif job.state is State.RUNNING:
            good(outcome)
            job.cancel = True

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(list(self.known.values())))
        outcome = self.operate(control.retry, job)
        if job.state in (State.DEAD, State.CANCELLED):
            self.fresh(job, good(outcome).job)
        elif job.state is State.UNKNOWN:
            assert reason(outcome) == "verdict_required"

    @precondition(lambda self: self.known)
    @rule(data=st.data(), verdict=st.sampled_from(list(Verdict)))
    def reconcile(self, data: st.DataObject, verdict: Verdict) -> None:
        job = data.draw(st.sampled_from(list(self.known.values())))
        outcome = self.operate(control.reconcile, job, verdict=verdict, evidence=b'"seen"')
        if job.state is State.UNKNOWN and not isinstance(outcome, Refusal) and not outcome.replayed:
            if verdict is Verdict.RETRY:
                self.fresh(job, outcome.job)
            else:
                job.state = State.SUCCEEDED if verdict is Verdict.SUCCEEDED else State.DEAD

    def operate(self, op: Callable[..., Any], job: Known, **told: Any) -> Any:
        (outcome,) = self.jobs.database.run(op, [Control(job.id, self.jobs.caller, reason="because", **told)])
        return outcome

    def fresh(self, job: Known, told: Job) -> None:
        """A job that an operator has sent round again."""
        assert (told.state, told.attempt, told.fence) == (State.AVAILABLE, 0, job.fence)
        job.state, job.due, job.available_at = State.AVAILABLE, None, told.available_at
        job.attempt = job.losses = job.releases = job.throttles = 0
        job.cancel = False

    # -- time and sweeps -----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([3, 15, 70, 300]))
    def time_passes(self, seconds: int) -> None:
        self.jobs.move(seconds)

    @rule()
    def promote(self) -> None:
        before = self.jobs.now
        self.jobs.promote()
        on_disk = self.states()
        for job in self.known.values():
            if job.state is State.SCHEDULED and (job.due or 0) <= self.jobs.now:
                if (job.due or 0) > before and on_disk[job.id] is State.SCHEDULED:
                    continue
                job.state, job.due = State.AVAILABLE, None

    @rule()
    def abandon(self) -> None:
        before = self.jobs.now
        self.jobs.abandon()
        rows = {row.id: row for row in self.jobs.rows(jobs_table)}
        for job in self.known.values():
            if job.state is not State.RUNNING or (job.due or 0) > self.jobs.now:
                continue
            if (job.due or 0) > before and rows[job.id].state == State.RUNNING:
                continue
            job.losses += 1
            dead = job.attempt >= job.max_attempts or job.losses >= MAX_LEASE_LOSSES
            job.state = State.CANCELLED if job.cancel else State.DEAD if dead else State.SCHEDULED
            job.holder, job.due = None, None
            if job.state is State.SCHEDULED:
                job.available_at = job.due = rows[job.id].available_at

    # -- what always holds ---------------------------------------------------------------------------------------------

    def states(self) -> dict[bytes, State]:
        return {row.id: State(row.state) for row in self.jobs.rows(jobs_table)}

    @invariant()
    def the_database_is_what_the_model_says(self) -> None:
        rows = {row.id: row for row in self.jobs.rows(jobs_table)}
        assert rows.keys() == self.known.keys(), "no acknowledged work is lost, none is invented"
        for job_id, job in self.known.items():
            row = rows[job_id]
            assert (State(row.state), row.fence, row.attempt) == (job.state, job.fence, job.attempt)
            assert (row.lease_losses, row.releases, row.throttles) == (job.losses, job.releases, job.throttles)
            assert row.fence >= self.fences.get(job_id, 0), "a fence never goes back"
            self.fences[job_id] = row.fence
            assert (row.cancel_requested_at is not None) >= (job.cancel and job.state is State.RUNNING)
        assert Counter(State(row.state) for row in rows.values()) == Counter(job.state for job in self.known.values())

    @invariant()
    def every_end_has_a_reason(self) -> None:
        kinds: dict[bytes, list[str]] = {}
        for event in sorted(self.jobs.rows(job_events), key=lambda one: bytes(one.id)):
            kinds.setdefault(event.job_id, []).append(event.kind)
        for row in self.jobs.rows(jobs_table):
            told = kinds.get(row.id, [])
            if row.state == State.SUCCEEDED:
                assert row.settlement_digest is not None or "reconciled" in told
            elif row.state in (State.DEAD, State.CANCELLED):
                assert {"dead", "cancelled", "reconciled"} & set(told)
            elif row.state == State.UNKNOWN:
                assert "unknown" in told
            assert (row.ended_at is not None) == (State(row.state) in (State.SUCCEEDED, State.DEAD, State.CANCELLED))


def empty(jobs: Jobs) -> None:
    """Delete every job and all that belongs to one."""

    def run(tx: Any, commands: Any) -> Any:
        for table in reversed(metadata.sorted_tables):
            if "job" in table.name or "flows" in table.name or "queues" in table.name:
                tx.conn.execute(table.delete())
        return commands

    jobs.database.run(run, [None])


def run(machine: Any, jobs: Jobs, *, examples: int, steps: int) -> None:
    """Run so many histories of `machine`, a state machine that finds its `jobs` on its class."""
    here = type("Here", (machine,), {"jobs": jobs})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        here,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )


@pytest.mark.engines("sqlite")
def test_no_history_leads_the_embedded_database_away_from_the_model(jobs: Jobs) -> None:
    run(Machine, jobs, examples=60, steps=40)


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_no_history_leads_a_server_away_from_the_model(jobs: Jobs) -> None:
    run(Machine, jobs, examples=8, steps=25)
