"""The machine of cache entries against a model of it: one filler, growing fences, no late fill, true values and counts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.clock import MICROS
from app.primitives.cache.model import Found, OnFailure, Remembered
from app.primitives.cache.ops.locked import KEPT_MICROS
from app.primitives.cache.tables import entries, namespaces
from tests.primitives.cache.driving import NS, Cache, host, reason
from tests.primitives.jobs.test_machine import run

KEYS = ("a", "b")
OTHER = "other"
LEASE, TTL, STALE = 20, 30, 25


@dataclass
class Entry:
    """What the model knows of one entry."""

    value: str | None = None
    stored: float = 0
    filler: Remembered | None = None
    until: float = 0


class Machine(RuleBasedStateMachine):
    """Time moves only by the rule `wait`: what passes of itself is less than from any border to the next."""

    jobs: Cache  # set by `run`, under the name of its first user

    @property
    def cache(self) -> Cache:
        return self.jobs

    @initialize()
    def begin(self) -> None:
        self.cache.empty(entries, namespaces)
        self.cache.database.host = self.cache.host = host()
        self.now = 0.0
        self.on_failure = OnFailure.SERVE_STALE
        self.version: str | None = None
        self.fence = 0
        self.serial = 0
        self.entries = {key: Entry() for key in KEYS}
        self.lost: list[Remembered] = []  # fillings that hold no more
        self.done: list[tuple[Remembered, str | None]] = []  # and those that were used, with what was said
        self.cache.put("0", ns=OTHER, ttl=10_000_000)

    def state(self, key: str) -> Found | None:
        one = self.entries[key]
        if one.value is None or self.now >= one.stored + TTL + STALE:
            return None
        return Found.FRESH if self.now < one.stored + TTL else Found.STALE

    def running(self, key: str) -> bool:
        one = self.entries[key]
        return one.filler is not None and self.now < one.until

    def fresh_value(self) -> str:
        self.serial += 1
        return str(self.serial)

    def end(self, key: str) -> None:
        """Whatever filling there is holds no more."""
        one = self.entries[key]
        if one.filler is not None:
            self.lost.append(one.filler)
        one.filler = None

    # -- rules ---------------------------------------------------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS))
    def remember(self, key: str) -> None:
        told, state = self.cache.remember(key, lease=LEASE), self.state(key)
        value = None if told.value is None else told.value.value.decode()
        assert value == (self.entries[key].value if state else None)
        if state is Found.FRESH:
            assert told.found is Found.FRESH
        elif self.running(key):
            assert told.found is (Found.FILLING if state is None else Found.STALE)
        else:
            assert told.found is Found.FILL
            assert told.fence > self.fence, "a fence never goes back"
            self.fence = told.fence
            self.end(key)
            self.entries[key].filler, self.entries[key].until = told, self.now + LEASE

    @rule(key=st.sampled_from(KEYS), fails=st.booleans())
    def fill(self, key: str, fails: bool) -> None:
        one = self.entries[key]
        if one.filler is None:
            return
        said = None if fails else self.fresh_value()
        outcome = self.cache.try_fill(one.filler, said, ttl=TTL, stale=STALE)
        if not self.running(key):
            kept = self.now < one.until + KEPT_MICROS // MICROS  # after that, a sweep may have purged the row
            assert reason(outcome) in (("expired",) if kept else ("expired", "not_found"))
            self.end(key)
            return
        assert (outcome.fence, outcome.replayed) == (one.filler.fence, False)
        self.done.append((one.filler, said))
        one.filler = None
        if said is not None:
            one.value, one.stored = said, self.now
        elif self.on_failure is OnFailure.ERROR:
            one.value = None

    @rule(which=st.integers(0, 30))
    def fill_late(self, which: int) -> None:
        if self.lost:
            outcome = self.cache.try_fill(self.lost[which % len(self.lost)], self.fresh_value())
            assert reason(outcome) in ("expired", "superseded", "cancelled", "unknown_token", "not_found")

    @rule(which=st.integers(0, 30), otherwise=st.booleans())
    def say_again(self, which: int, otherwise: bool) -> None:
        """The newest eight reservations of an entry are known while its row is there."""
        if not self.done:
            return
        taken, said = self.done[which % len(self.done)]
        outcome = self.cache.try_fill(taken, "other" if otherwise else said, ttl=TTL, stale=STALE)
        if otherwise:
            assert reason(outcome) in ("settlement_conflict", "unknown_token", "not_found")
        elif getattr(outcome, "replayed", None) is not True:
            assert reason(outcome) in ("unknown_token", "not_found")

    @rule(key=st.sampled_from(KEYS))
    def put(self, key: str) -> None:
        value = self.fresh_value()
        self.cache.put(value, key, ttl=TTL, stale=STALE)
        self.end(key)
        self.entries[key].value, self.entries[key].stored = value, self.now

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key: str) -> None:
        assert self.cache.delete(key) == [self.state(key) is not None]
        self.end(key)
        self.entries[key].value = None

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        for key in KEYS:
            self.end(key)
            self.entries[key].value = None

    @rule(version=st.sampled_from([None, "1", "2"]), on_failure=st.sampled_from(OnFailure))
    def set_policy(self, version: str | None, on_failure: OnFailure) -> None:
        self.cache.policy(version=version, on_failure=on_failure)
        self.on_failure = on_failure
        if version != self.version:
            self.version = version
            for key in KEYS:
                self.end(key)
                self.entries[key].value = None

    @rule(seconds=st.sampled_from([10, 10, 20, 200]))
    def wait(self, seconds: int) -> None:
        self.cache.move(seconds)
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        self.cache.purge(3)
        self.cache.sweep_cleared(3)

    # -- what always holds ---------------------------------------------------------------------------------------------

    @invariant()
    def values_are_true(self) -> None:
        if not hasattr(self, "entries"):
            return
        for key in KEYS:
            found, state = self.cache.read(key), self.state(key)
            assert (None if found is None else found.found) == state, key
            if found is not None:
                assert found.value.decode() == self.entries[key].value
                assert found.filling == self.running(key)

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "entries"):
            if self.cache.rows(namespaces, namespaces.c.name == NS):
                self.cache.counted()
            assert self.cache.text(ns=OTHER) == "0", "no other namespace is touched"


@pytest.mark.engines("sqlite")
def test_no_history_leads_the_embedded_database_away_from_the_model(cache: Cache) -> None:
    run(Machine, cache, examples=80, steps=40)


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_no_history_leads_a_server_away_from_the_model(cache: Cache) -> None:
    run(Machine, cache, examples=12, steps=30)
