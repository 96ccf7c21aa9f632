"""Races of the cache: many real transactions at once, on real servers, each process with a database of its own."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from app.errors import Refusal
from app.primitives.cache.model import Found, Remembered
from app.primitives.cache.tables import entries
from tests.primitives.cache.driving import Cache, reason
from tests.primitives.jobs.test_races import SECONDS, together

pytestmark = pytest.mark.engines("mariadb", "mysql", "postgresql")
ROUNDS = int(os.environ.get("TENURE_TEST_ROUNDS", "40"))
FIRST = 50


def test_fifty_who_miss_a_new_key_at_once_give_one_filler_and_no_deadlock(
    cache: Cache, replica: Callable[[], Cache]
) -> None:
    """Scenario 12, with the namespace as new as the key."""
    processes = [replica() for _ in range(FIRST)]
    barrier = threading.Barrier(FIRST)
    outcomes: dict[int, list[Remembered]] = defaultdict(list)

    def acting(process: Cache) -> Callable[[], None]:
        def act() -> None:
            try:
                for number in range(4):
                    barrier.wait(SECONDS)
                    outcomes[number].append(process.remember(f"new {number}", ns=f"n{number // 2}"))
            finally:
                process.database.close()

        return act

    together(*(acting(process) for process in processes), seconds=SECONDS * 2)
    for number in range(4):
        assert sorted(one.found for one in outcomes[number]) == [Found.FILL] + [Found.FILLING] * (FIRST - 1)
    assert not any(process.database.faults for process in processes), "nobody even had to try again"


def test_whatever_many_do_at_once_each_filling_is_used_once_and_counts_agree(
    cache: Cache, replica: Callable[[], Cache]
) -> None:
    """Fill, fail, put, delete, clear, purge and evict, from several processes on few keys with a small limit."""
    processes = [replica() for _ in range(6)]
    cache.policy(max_entries=3, max_bytes=40)
    guard = threading.Lock()
    fences: list[int] = []

    def step(process: Cache, number: int, who: int) -> None:
        key = f"k{(number + who) % 5}"
        found = process.remember(key)
        if found.found is Found.FILL:
            with guard:
                fences.append(found.fence)
            outcome = process.try_fill(found, None if number % 4 == 0 else "x" * (number % 9 + 1), ttl=60)
            if isinstance(outcome, Refusal):
                assert reason(outcome) in ("cancelled", "superseded", "not_found")
        if (number * 7 + who) % 5 == 0:
            process.put("y" * (who + 1), key)
        elif (number * 7 + who) % 5 == 1:
            process.delete(key, f"k{number % 5}")
        elif (number + who) % 19 == 0:
            process.clear()
            process.sweep_cleared(3)

    def acting(process: Cache, who: int) -> Callable[[], None]:
        def act() -> None:
            try:
                for number in range(ROUNDS):
                    step(process, number, who)
            finally:
                process.database.close()

        return act

    together(*(acting(process, who) for who, process in enumerate(processes)), seconds=SECONDS * 4)
    assert len(fences) == len(set(fences)), "no two fillings have one fence"
    held, size = cache.counted()
    assert held <= 3
    assert size <= 40
    cache.move(100_000)
    while cache.purge() or cache.sweep_cleared():
        cache.counted()
    assert cache.rows(entries) == []
    assert cache.counted() == (0, 0)


def test_a_fill_and_the_end_of_its_lease_at_once_agree(cache: Cache, replica: Callable[[], Cache]) -> None:
    """Either the filler's value is stored, or another may fill: never both, never neither."""
    other = replica()
    barrier = threading.Barrier(2)
    taken: list[Remembered] = []
    given: list[Any] = [None]

    def filler() -> None:
        try:
            for number in range(ROUNDS):
                taken.append(cache.take(f"k{number}", lease=10))
                barrier.wait(SECONDS)
                given[0] = cache.try_fill(taken[-1], "1", ttl=1000)
                barrier.wait(SECONDS)
        finally:
            cache.database.close()

    def successor() -> None:
        try:
            for number in range(ROUNDS):
                barrier.wait(SECONDS)
                other.database.clock.shift_micros = 11_000_000  # for this process the lease has ended
                found = other.remember(f"k{number}")
                other.database.clock.shift_micros = 0
                barrier.wait(SECONDS)
                if isinstance(given[0], Refusal):
                    assert reason(given[0]) == "superseded"
                    assert found.found is Found.FILL
                else:
                    assert found.found is Found.FRESH
        finally:
            other.database.close()

    together(filler, successor, seconds=SECONDS * 2)
