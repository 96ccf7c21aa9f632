"""Races of locks: many real transactions at once, on real servers, each process with a database of its own."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from app.errors import Refusal
from app.primitives.locks.model import Acquired
from app.primitives.locks.tables import lock_waiters
from tests.primitives.jobs.test_races import SECONDS, together
from tests.primitives.locks.driving import Locks, good, reason

pytestmark = pytest.mark.engines("mariadb", "mysql", "postgresql")
ROUNDS = int(os.environ.get("TENURE_TEST_ROUNDS", "40"))
FIRST = 50


def test_fifty_first_acquires_of_a_new_name_give_one_holder_and_no_deadlock(
    locks: Locks, replica: Callable[[], Locks]
) -> None:
    """Scenario 12: a locking read of a row that is not there, then its INSERT, deadlocks on gap locks."""
    processes = [replica() for _ in range(FIRST)]
    barrier = threading.Barrier(FIRST)
    outcomes: dict[int, list[Any]] = defaultdict(list)

    def acting(process: Locks) -> Callable[[], None]:
        def act() -> None:
            try:
                for number in range(4):
                    barrier.wait(SECONDS)
                    outcomes[number] += process.acquire_all(process.wanted(f"new {number}"))
            finally:
                process.database.close()

        return act

    together(*(acting(process) for process in processes), seconds=SECONDS * 2)
    for number in range(4):
        holders = [one for one in outcomes[number] if isinstance(one, Acquired)]
        assert [one.fence for one in holders] == [1]
        assert len(outcomes[number]) == FIRST
        assert {reason(one) for one in outcomes[number] if isinstance(one, Refusal)} == {"locked"}
    faults = [process.database.faults for process in processes]
    assert not any(faults), "nobody even had to try again"


def test_of_many_who_fight_for_locks_one_holds_each_at_a_time(locks: Locks, replica: Callable[[], Locks]) -> None:
    """Acquire, renew, release and break from several processes; what is written under a lock shows every overlap."""
    processes = [replica() for _ in range(6)]
    guard = threading.Lock()
    inside: dict[str, int] = defaultdict(int)
    fences: dict[str, list[int]] = defaultdict(list)

    def enter(held: Acquired) -> None:
        with guard:
            inside[held.name] += 1
            assert inside[held.name] == 1, "two hold one lock"
            fences[held.name].append(held.fence)

    def acting(process: Locks) -> Callable[[], None]:
        def act() -> None:
            try:
                for number in range(ROUNDS):
                    name = f"l{number % 2}"
                    call = process.wanted(name, wait=30)
                    got = process.again(call)
                    while not isinstance(got, Acquired):
                        process.attend()
                        got = process.again(call)
                    enter(got)
                    process.renew(got)
                    with guard:
                        inside[name] -= 1
                    assert not process.release(got).replayed
            finally:
                process.database.close()

        return act

    together(*(acting(process) for process in processes), seconds=SECONDS * 4)
    for seen in fences.values():
        assert seen == sorted(set(seen)), "fences grow in the order of the holders"
    assert sum(len(seen) for seen in fences.values()) == ROUNDS * len(processes)
    assert not locks.rows(lock_waiters)


def test_a_release_and_a_break_at_once_free_the_lock_once(locks: Locks, replica: Callable[[], Locks]) -> None:
    other = replica()
    barrier = threading.Barrier(2)
    given: list[Any] = [None, None]
    held: list[Acquired] = []

    def holder() -> None:
        try:
            for _ in range(ROUNDS):
                held.append(locks.take())
                barrier.wait(SECONDS)
                given[0] = locks.release_all(held[-1])[0]
                barrier.wait(SECONDS)
                released, broken = given
                assert isinstance(released, Refusal) == broken.broken
                if broken.broken:
                    assert reason(released) == "cancelled"
                barrier.wait(SECONDS)
        finally:
            locks.database.close()

    def operator() -> None:
        try:
            for _ in range(ROUNDS):
                barrier.wait(SECONDS)
                given[1] = other.break_()
                barrier.wait(SECONDS)
                barrier.wait(SECONDS)
        finally:
            other.database.close()

    together(holder, operator, seconds=SECONDS * 2)
    assert [one.fence for one in held] == list(range(1, ROUNDS + 1))


def test_a_purge_and_acquires_at_once_never_give_a_fence_twice(locks: Locks, replica: Callable[[], Locks]) -> None:
    """The row of a free lock is deleted while others acquire it anew."""
    sweeper, other = replica(), replica()
    sweeper.host.set(locks_retention_seconds=0.0)
    done = threading.Event()
    fences: list[int] = []

    def acting() -> None:
        try:
            for number in range(ROUNDS):
                held = other.take(f"l{number % 3}", wait=0)
                fences.append(held.fence)
                other.release(held)
        finally:
            done.set()
            other.database.close()

    def sweeping() -> None:
        try:
            while not done.is_set():
                sweeper.purge()
        finally:
            sweeper.database.close()

    # both see a clock on which every row that is free has been so for long
    for process in (sweeper, other):
        process.host.set(locks_retention_seconds=-3600.0)
    together(acting, sweeping, seconds=SECONDS * 2)
    for place in range(3):
        own = fences[place::3]
        assert own == sorted(set(own))
    assert good(locks.try_("l0")).fence > max(fences[::3])
