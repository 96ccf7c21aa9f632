"""The machine of idempotency keys against a model of it: one owner, growing fences, no silent second run, true answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.db.tables import fence_floors
from app.primitives.idempotency.model import Checked, OnOwnerLost, Outcome, State, Verdict
from app.primitives.idempotency.tables import keys as table
from app.primitives.idempotency.tables import results
from tests.primitives.idempotency.driving import Idempotency, host, reason
from tests.primitives.jobs.test_machine import run

NAMES = ("a", "b")
LEASE, RETENTION = 20, 200
STATES = (State.COMPLETED, State.FAILED, State.UNKNOWN, State.OPEN)


@dataclass
class Name:
    """What the model knows of one key. `past`: (owner, how its reservation ended: what it said, or None), newest first."""

    state: State | None = None
    request: str = ""
    fence: int = 0
    attempt: int = 0
    owner: Checked | None = None
    ends: float = 0  # of the lease, or of the retention
    lost: OnOwnerLost = OnOwnerLost.RECONCILE
    past: list[tuple[Checked, State | None]] = field(default_factory=list)
    ran: int = 0  # how often the work was begun since the key was new


class Machine(RuleBasedStateMachine):
    """Time moves only by the rule `wait`."""

    jobs: Idempotency  # set by `run`, under the name of its first user

    @property
    def keys(self) -> Idempotency:
        return self.jobs

    @initialize()
    def begin(self) -> None:
        self.keys.empty(table, results, fence_floors)
        self.keys.database.host = self.keys.host = host()
        self.now = 0.0
        self.names = {name: Name() for name in NAMES}

    @rule(name=st.sampled_from(NAMES), request=st.sampled_from("xxxxy"), lost=st.sampled_from(OnOwnerLost))
    def check(self, name: str, request: str, lost: OnOwnerLost) -> None:
        one = self.names[name]
        told = self.keys.check_all(self.keys.wanted(name, request, lease=LEASE, retention=RETENTION, lost=lost))[0]
        new = one.state is None
        if not new and one.request != request:
            assert reason(told) == "idempotency_conflict"
        elif new or one.state is State.OPEN:
            assert told.outcome is Outcome.ACQUIRED
            assert told.fence > one.fence
            one.attempt = 1 if new else one.attempt + 1
            assert told.attempt == one.attempt
            one.state, one.request, one.fence, one.owner = State.RUNNING, request, told.fence, told
            one.ends, one.lost = self.now + LEASE, lost
        else:
            self.told(one, told)

    def told(self, one: Name, told: Any) -> None:
        outcomes = {
            State.RUNNING: Outcome.IN_PROGRESS,
            State.COMPLETED: Outcome.REPLAY,
            State.FAILED: Outcome.FAILED,
            State.UNKNOWN: Outcome.RECONCILE,
        }
        assert one.state is not None
        assert told.outcome is outcomes[one.state]
        assert (told.fence, told.attempt, told.token) == (one.fence, one.attempt, None)

    @rule(name=st.sampled_from(NAMES), state=st.sampled_from(STATES))
    def settle(self, name: str, state: State) -> None:
        one = self.names[name]
        if one.owner is not None:
            assert not self.keys.settle(one.owner, state, key=name).replayed
            self.leave(one, state, state)

    def leave(self, one: Name, state: State, said: State | None) -> None:
        assert one.owner is not None
        one.past.insert(0, (one.owner, said))
        one.owner, one.state, one.ends = None, state, self.now + RETENTION

    @rule(name=st.sampled_from(NAMES))
    def beat(self, name: str) -> None:
        one = self.names[name]
        if one.owner is not None:
            self.keys.beat(one.owner, LEASE, key=name)
            one.ends = self.now + LEASE

    @rule(name=st.sampled_from(NAMES), place=st.integers(0, 9), state=st.sampled_from(STATES))
    def old_token(self, name: str, place: int, state: State) -> None:
        """An owner of before changes nothing; a repeat of what it said is told from anything else, for eight of them."""
        one = self.names[name]
        if not one.past:
            return
        place %= len(one.past)
        old, said = one.past[place]
        told = self.keys.settle_all(self.keys.settlement(old, state, key=name))[0]
        known = place + (one.owner is not None) <= 8
        newest = place == 0 and one.owner is None
        if not known:
            assert reason(told) == "unknown_token"
        elif said is None:
            assert reason(told) == ("expired" if newest else "superseded")
        elif said is state:
            assert (told.replayed, told.fence) == (True, old.fence)
        else:
            assert reason(told) == "settlement_conflict"

    @rule(name=st.sampled_from(NAMES), verdict=st.sampled_from(Verdict))
    def decide(self, name: str, verdict: Verdict) -> None:
        one = self.names[name]
        told = self.keys.verdict(verdict, key=name)
        if one.state is State.UNKNOWN:
            one.state = {
                Verdict.COMPLETED: State.COMPLETED, Verdict.FAILED: State.FAILED, Verdict.REOPEN: State.OPEN,
            }[verdict]  # fmt: skip
            one.ends = self.now + RETENTION
            assert (told.state, told.replayed) == (one.state, False)

    @rule()
    def sweep(self) -> None:
        self.keys.abandon()

    @rule()
    def purge(self) -> None:
        self.keys.purge()

    @rule(seconds=st.sampled_from([1, 5, 15, 25, RETENTION + 70]))
    def wait(self, seconds: float) -> None:
        self.keys.move(seconds)
        self.now += seconds
        for name, one in self.names.items():
            self.pass_by(name, one)

    def pass_by(self, name: str, one: Name) -> None:
        """What time alone does. Whether a key is gone or only past its retention, nobody can tell but by its old tokens."""
        if one.state is State.RUNNING and one.ends <= self.now:
            state = {
                OnOwnerLost.RECONCILE: State.UNKNOWN, OnOwnerLost.REOPEN: State.OPEN, OnOwnerLost.FAIL: State.FAILED,
            }[one.lost]  # fmt: skip
            self.keys.abandon()
            self.leave(one, state, None)
        elif one.state in (State.COMPLETED, State.FAILED, State.OPEN) and one.ends <= self.now:
            self.keys.move(70)
            self.now += 70
            self.keys.purge()
            self.names[name] = Name(fence=one.fence)
            for other in self.names.values():
                if other.state is State.RUNNING and other.ends <= self.now:
                    self.pass_by("", other)

    @invariant()
    def the_database_is_what_the_model_says(self) -> None:
        found = sorted(State(row.state) for row in self.keys.rows(table))
        assert found == sorted(one.state for one in self.names.values() if one.state is not None)


@pytest.mark.engines("sqlite")
def test_no_history_leads_the_embedded_database_away_from_the_model(keys: Idempotency) -> None:
    run(Machine, keys, examples=80, steps=40)


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_no_history_leads_a_server_away_from_the_model(keys: Idempotency) -> None:
    run(Machine, keys, examples=12, steps=30)
