"""The machine of locks against a model of it: one holder, growing fences, the order of the line, and what tokens are worth."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.db.tables import fence_floors
from app.errors import Refusal
from app.primitives.locks.model import Acquire, Acquired, InLine
from app.primitives.locks.tables import lock_processes, lock_waiters
from app.primitives.locks.tables import locks as locks_table
from tests.primitives.jobs.test_machine import run
from tests.primitives.locks.driving import Locks, host, reason

NAMES = ("a", "b")
TTL = 20
RETENTION = 600.0


@dataclass
class Name:
    """What the model knows of one lock. `past`: (grant, how it ended), newest first."""

    fence: int = 0
    held: Acquired | None = None
    ends: float = 0
    past: list[tuple[Acquired, str]] = field(default_factory=list)
    line: list[tuple[Acquire, float]] = field(default_factory=list)


class Machine(RuleBasedStateMachine):
    """Time moves only by the rule `wait`. The process is always heard of."""

    jobs: Locks  # set by `run`, under the name of its first user

    @property
    def locks(self) -> Locks:
        return self.jobs

    @initialize()
    def begin(self) -> None:
        self.locks.empty(lock_waiters, lock_processes, locks_table, fence_floors)
        self.locks.database.host = self.locks.host = host()
        self.locks.host.set(locks_retention_seconds=RETENTION)
        self.now = 0.0
        self.names = {name: Name() for name in NAMES}

    def settle_time(self, one: Name) -> None:
        if one.held is not None and one.ends <= self.now:
            one.past.insert(0, (one.held, "expired"))
            one.held = None
        one.line = [(call, until) for call, until in one.line if until > self.now]

    def granted(self, one: Name, got: Acquired) -> None:
        assert one.held is None
        assert got.fence > one.fence
        one.held, one.fence, one.ends = got, got.fence, self.now + TTL

    @rule(name=st.sampled_from(NAMES), wait=st.sampled_from([0, 10, 30]))
    def acquire(self, name: str, wait: int) -> None:
        one = self.names[name]
        call = self.locks.wanted(name, ttl=TTL, wait=wait)
        outcome = self.locks.again(call)
        if one.held is None and not one.line:
            assert isinstance(outcome, Acquired)
            self.granted(one, outcome)
        elif wait:
            assert isinstance(outcome, InLine)
            one.line.append((call, self.now + wait + 2))
        else:
            assert reason(outcome) == "locked"

    @rule(name=st.sampled_from(NAMES), place=st.integers(0, 4))
    def come_again(self, name: str, place: int) -> None:
        one = self.names[name]
        if not one.line:
            return
        place %= len(one.line)
        call, _ = one.line[place]
        outcome = self.locks.again(call)
        if one.held is None and place == 0:
            assert isinstance(outcome, Acquired)
            self.granted(one, outcome)
            del one.line[0]
        else:
            assert isinstance(outcome, InLine)

    @rule(name=st.sampled_from(NAMES), place=st.integers(0, 4))
    def give_up(self, name: str, place: int) -> None:
        one = self.names[name]
        if one.line:
            call, _ = one.line.pop(place % len(one.line))
            assert reason(self.locks.leave(call)) == "locked"

    @rule(name=st.sampled_from(NAMES))
    def release(self, name: str) -> None:
        one = self.names[name]
        if one.held is not None:
            assert not self.locks.release(one.held).replayed
            one.past.insert(0, (one.held, "settled"))
            one.held = None

    @rule(name=st.sampled_from(NAMES))
    def renew(self, name: str) -> None:
        one = self.names[name]
        if one.held is not None:
            self.locks.renew(one.held, TTL)
            one.ends = self.now + TTL

    @rule(name=st.sampled_from(NAMES))
    def break_(self, name: str) -> None:
        one = self.names[name]
        if one.held is not None:
            assert self.locks.break_(name).fence == one.fence
            one.past.insert(0, (one.held, "cancelled"))
            one.held = None

    @rule(name=st.sampled_from(NAMES), place=st.integers(0, 9))
    def old_token(self, name: str, place: int) -> None:
        """A token of before renews nothing; its release is known for eight holders, and truly told."""
        one = self.names[name]
        if not one.past:
            return
        place %= len(one.past)
        old, how = one.past[place]
        renewed = self.locks.renew_all(self.locks.hold(old, TTL))[0]
        assert isinstance(renewed, Refusal)
        # beside the newest reservation, held or over, eight are remembered
        known = place + (one.held is not None) <= 8
        newest = place == 0 and one.held is None
        outcome = self.locks.release_all(old)[0]
        if not known:
            assert reason(outcome) == "unknown_token"
        elif how == "settled":
            assert outcome.replayed
            assert outcome.fence == old.fence
        else:
            assert reason(outcome) == (how if newest else "superseded")

    @rule(name=st.sampled_from(NAMES))
    def verify(self, name: str) -> None:
        one = self.names[name]
        seen = self.locks.verify(name, one.fence)
        assert (seen.held, seen.current) == (one.held is not None, one.held is not None)
        assert seen.fence >= one.fence

    @rule()
    def sweep(self) -> None:
        self.locks.expire()

    @precondition(lambda self: all(one.held is None for one in self.names.values()))
    @rule()
    def forget(self) -> None:
        """Everything is purged, but fences go on from where they were."""
        self.locks.expire()
        for _ in range(3):
            self.wait(RETENTION + 61)
        self.locks.purge()
        for one in self.names.values():
            one.past.clear()

    @rule(seconds=st.sampled_from([1, 5, 15, 25]))
    def wait(self, seconds: float) -> None:
        self.locks.move(seconds)
        self.now += seconds
        self.locks.attend()
        for one in self.names.values():
            self.settle_time(one)

    @invariant()
    def nobody_else_holds(self) -> None:
        for name, one in self.names.items():
            assert self.locks.verify(name, 0).held == (one.held is not None)


@pytest.mark.engines("sqlite")
def test_no_history_leads_the_embedded_database_away_from_the_model(locks: Locks) -> None:
    run(Machine, locks, examples=80, steps=40)


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_no_history_leads_a_server_away_from_the_model(locks: Locks) -> None:
    run(Machine, locks, examples=12, steps=30)
