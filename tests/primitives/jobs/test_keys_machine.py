"""The job machine with keys against a model of it: who holds a unique key, who has a slot, who waits and in which order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.primitives.jobs.model import (
    ENDED,
    WAITING,
    Control,
    Debounce,
    Filter,
    Granted,
    OnConflict,
    State,
    Unique,
    Until,
    Verdict,
)
from app.primitives.jobs.ops import bulk, control
from tests.primitives.jobs.driving import OUTCOMES, Host, Jobs, good, new_job, reason
from tests.primitives.jobs.keyed import check_keys, debounce, holder_of, slot, states, unique
from tests.primitives.jobs.test_machine import empty, run

SOLES = [
    None,
    *(unique(name, conflict, until) for name in "ab" for conflict in OnConflict for until in Until),
    *(debounce(name, 20, 50) for name in "ab"),
]
AVAILABLE, BLOCKED, SCHEDULED = State.AVAILABLE, State.BLOCKED, State.SCHEDULED


@dataclass
class Known:
    """What the model knows of one job."""

    id: bytes
    state: State
    priority: int
    payload: bytes
    due: int | None = None
    sole: Unique | Debounce | None = None
    holds: bool = False
    latest: int | None = None
    key: str | None = None
    position: int = 0
    attempt: int = 0
    cancel: bool = False
    grant: Granted | None = None


@dataclass
class Lines:
    """The model of concurrency keys: no more than a list that is looked through."""

    limits: dict[str, int] = field(default_factory=dict)
    highest: int = 1
    positions: int = 0

    def refill(self, jobs: list[Known]) -> None:
        for key, limit in self.limits.items():
            mine = [job for job in jobs if job.key == key]
            held = sum(job.state in (AVAILABLE, State.RUNNING) for job in mine)
            line = sorted((job for job in mine if job.state is BLOCKED), key=lambda job: (job.priority, job.position))
            for job in line[: max(0, limit - held)]:
                job.state = AVAILABLE


class KeyMachine(RuleBasedStateMachine):
    """Rules act on the database and on the model; the invariants hold them against each other after every step."""

    jobs: Jobs

    def __init__(self) -> None:
        super().__init__()
        self.jobs.host.memory = Host().memory
        self.jobs.host.set(jobs_backoff_seconds=(20.0,), jobs_max_lease_losses=3, jobs_max_attempts=3)
        empty(self.jobs)
        self.known: dict[bytes, Known] = {}
        self.lines = Lines()

    # -- producers -----------------------------------------------------------------------------------------------------

    @rule(
        sole=st.sampled_from(SOLES),
        key=st.sampled_from([None, "x", "x", "y"]),
        limit=st.integers(1, 2),
        delay=st.sampled_from([None, None, 30]),
        priority=st.integers(-1, 1),
        payload=st.sampled_from([b"1", b"2", b"3"]),
    )
    def enqueue(self, sole: Any, key: str | None, limit: int, delay: int | None, priority: int, payload: bytes) -> None:
        keys: dict[str, Any] = {} if key is None else {"concurrency": slot(key, limit)}
        if isinstance(sole, Debounce):
            keys["debounce"], delay = sole, None
        elif sole is not None:
            keys["unique"] = sole
        (outcome,) = self.jobs.enqueue_all(new_job(delay=delay, priority=priority, payload=payload, **keys))
        holder = self.holder(sole)
        if holder is not None:
            keeps = isinstance(sole, Unique) and sole.on_conflict is OnConflict.KEEP
            rejects = isinstance(sole, Unique) and sole.on_conflict is OnConflict.REJECT
            started = holder.state not in WAITING or holder.attempt > 0
            if rejects or (started and not keeps):
                assert reason(outcome) == "unique_conflict"
                return
            assert (good(outcome).job.id, good(outcome).deduplicated) == (holder.id, True)
            if keeps:
                return
            job, old_key = holder, holder.key
        else:
            assert not good(outcome).deduplicated
            told = good(outcome).job
            job, old_key = Known(told.id, told.state, priority, payload), None
            self.known[told.id] = job
        told = good(outcome).job
        later = told.available_at > self.jobs.now - 1_000_000 and told.due_at is not None
        job.priority, job.payload, job.sole, job.holds = priority, payload, sole, sole is not None
        job.due = told.due_at
        if isinstance(sole, Debounce):
            job.latest = job.latest or told.created_at + 50_000_000 if holder is None else job.latest
            if holder is not None and job.latest is None:
                job.latest = told.available_at + 30_000_000  # the first enqueue of this window: 20 s of at most 50
            assert told.available_at <= (job.latest or 0)
        else:
            job.latest = None
        job.state = SCHEDULED if later else AVAILABLE
        job.key = key
        if key is not None:
            if key != old_key or holder is None:
                self.lines.positions += 1
                job.position = self.lines.positions
            self.lines.limits[key] = limit
            self.lines.highest = max(self.lines.highest, limit)
            if job.state is AVAILABLE:
                job.state = BLOCKED
        self.lines.refill(list(self.known.values()))
        assert told.state is job.state

    def holder(self, sole: Unique | Debounce | None) -> Known | None:
        if sole is None:
            return None
        found = [
            job for job in self.known.values() if job.holds and job.sole is not None and job.sole.digest == sole.digest
        ]
        assert len(found) <= 1
        return found[0] if found else None

    # -- workers -------------------------------------------------------------------------------------------------------

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        ready = [job for job in self.known.values() if job.state is AVAILABLE]
        grants = self.jobs.claim(limit=limit)
        assert len(grants) == min(limit, len(ready))
        for grant in grants:
            job = self.known[grant.id]
            assert job.state is AVAILABLE
            assert grant.payload == job.payload, "it sees what the newest enqueue that was answered said"
            job.state, job.grant, job.due, job.cancel = State.RUNNING, grant, grant.expires_at, False
            job.attempt += 1
            if isinstance(job.sole, Debounce) or (job.sole is not None and job.sole.until is Until.STARTED):
                job.holds = False

    @precondition(lambda self: any(job.state is State.RUNNING for job in self.known.values()))
    @rule(data=st.data(), name=st.sampled_from(sorted(OUTCOMES)))
    def settle(self, data: st.DataObject, name: str) -> None:
        job = data.draw(st.sampled_from([job for job in self.known.values() if job.state is State.RUNNING]))
        assert job.grant is not None
        (outcome,) = self.jobs.settle_all(OUTCOMES[name](job.grant))
        if (job.due or 0) <= self.jobs.now:
            assert reason(outcome) == "expired"
            return
        self.leave(job, good(outcome).state, good(outcome).available_at, released=name.startswith("released"))

    def leave(self, job: Known, state: State, due: int | None, *, released: bool = False) -> None:
        job.state, job.due, job.grant = state, due if state is SCHEDULED else None, None
        if released:
            job.attempt -= 1
        if state in ENDED:
            job.holds = False
        self.lines.refill(list(self.known.values()))

    # -- operators -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(list(self.known.values())))
        outcome = self.operate(control.cancel, job)
        if job.state in WAITING:
            assert good(outcome).job.state is State.CANCELLED
            self.leave(job, State.CANCELLED, None)
        elif job.state is State.RUNNING:
            job.cancel = True

    @precondition(lambda self: self.known)
    @rule(data=st.data(), verdict=st.sampled_from([None, *Verdict]))
    def retry_or_judge(self, data: st.DataObject, verdict: Verdict | None) -> None:
        job = data.draw(st.sampled_from(list(self.known.values())))
        if verdict is None:
            outcome = self.operate(control.retry, job)
            if job.state not in (State.DEAD, State.CANCELLED):
                return
            holder = self.holder(job.sole)
            if holder is not None:
                assert reason(outcome) == "unique_conflict"
                return
            job.holds = job.sole is not None
        else:
            outcome = self.operate(control.reconcile, job, verdict=verdict, evidence=b"1")
            if job.state is not State.UNKNOWN:
                return
            if verdict is not Verdict.RETRY:
                self.leave(job, good(outcome).job.state, None)
                return
        job.attempt, job.cancel = 0, False
        self.leave(job, AVAILABLE if job.key is None else BLOCKED, None)
        assert good(outcome).job.state is job.state

    def operate(self, op: Callable[..., Any], job: Known, **told: Any) -> Any:
        (outcome,) = self.jobs.database.run(op, [Control(job.id, self.jobs.caller, reason="because", **told)])
        return outcome

    @rule()
    def purge(self) -> None:
        command = bulk.Bulk(bulk.Action.PURGE, Filter(queue="q"), self.jobs.caller, "why", 1000)
        self.jobs.database.run(bulk.change, [command])
        self.known = {key: job for key, job in self.known.items() if job.state not in ENDED}

    # -- time and sweeps -----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([15, 40, 70]))
    def time_passes(self, seconds: int) -> None:
        self.jobs.move(seconds)

    @rule()
    def promote(self) -> None:
        self.jobs.promote()
        for job in self.known.values():
            if job.state is SCHEDULED and (job.due or 0) <= self.jobs.now:
                job.state, job.due = AVAILABLE if job.key is None else BLOCKED, None
        self.lines.refill(list(self.known.values()))

    @rule()
    def abandon(self) -> None:
        self.jobs.abandon()
        on_disk = states(self.jobs)
        for job in list(self.known.values()):
            if job.state is State.RUNNING and (job.due or 0) <= self.jobs.now:
                left = on_disk[job.id]
                assert left in (State.CANCELLED if job.cancel else SCHEDULED, State.DEAD)
                self.leave(job, left, self.jobs.job(job.id).due_at)

    # -- what always holds ---------------------------------------------------------------------------------------------

    @invariant()
    def the_database_is_what_the_model_says(self) -> None:
        assert states(self.jobs) == {job.id: job.state for job in self.known.values()}
        for sole in SOLES:
            if sole is not None:
                holder = self.holder(sole)
                assert holder_of(self.jobs, sole) == (None if holder is None else holder.id)

    @invariant()
    def the_keys_are_sound(self) -> None:
        check_keys(self.jobs, most_ever=self.lines.highest)


@pytest.mark.engines("sqlite")
def test_no_history_of_keys_leads_the_embedded_database_away_from_the_model(jobs: Jobs) -> None:
    run(KeyMachine, jobs, examples=25, steps=30)


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_no_history_of_keys_leads_a_server_away_from_the_model(jobs: Jobs) -> None:
    run(KeyMachine, jobs, examples=8, steps=30)
