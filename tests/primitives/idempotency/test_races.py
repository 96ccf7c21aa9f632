"""Races of idempotency keys: many real transactions at once, on real servers, each process with a database of its own."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from app.errors import Refusal
from app.primitives.idempotency.model import Checked, Outcome, State
from app.primitives.idempotency.model import OnOwnerLost as Lost
from tests.primitives.idempotency.driving import Idempotency, good, reason
from tests.primitives.jobs.test_races import SECONDS, together

pytestmark = pytest.mark.engines("mariadb", "mysql", "postgresql")
ROUNDS = int(os.environ.get("TENURE_TEST_ROUNDS", "40"))
FIRST = 50


def test_fifty_first_checks_of_a_new_key_give_one_owner(keys: Idempotency, replica: Callable[[], Idempotency]) -> None:
    """Scenario 12."""
    processes = [replica() for _ in range(FIRST)]
    barrier = threading.Barrier(FIRST)
    outcomes: dict[int, list[Checked]] = defaultdict(list)

    def acting(process: Idempotency) -> Callable[[], None]:
        def act() -> None:
            try:
                for number in range(4):
                    barrier.wait(SECONDS)
                    outcomes[number].append(process.check(f"new {number}"))
            finally:
                process.database.close()

        return act

    together(*(acting(process) for process in processes), seconds=SECONDS * 2)
    for number in range(4):
        told = sorted(one.outcome for one in outcomes[number])
        assert told == [Outcome.ACQUIRED] + [Outcome.IN_PROGRESS] * (FIRST - 1)


def test_of_many_who_want_the_same_work_done_one_does_it(keys: Idempotency, replica: Callable[[], Idempotency]) -> None:
    """Owners fail, come back and succeed; the effect behind each key happens once, and everybody gets its result."""
    processes = [replica() for _ in range(6)]
    guard = threading.Lock()
    effects: dict[str, list[int]] = defaultdict(list)

    def do(process: Idempotency, key: str, number: int) -> bytes:
        while True:
            told = process.check(key)
            if told.outcome is Outcome.REPLAY:
                assert told.result is not None
                return told.result
            if told.outcome is not Outcome.ACQUIRED:
                continue
            if (told.attempt + number) % 3 == 0:
                process.settle(told, State.OPEN, key=key)
                continue
            with guard:
                effects[key].append(told.fence)
            process.settle(told, result=b"%d" % told.fence, key=key)

    def acting(process: Idempotency) -> Callable[[], list[bytes]]:
        def act() -> list[bytes]:
            try:
                return [do(process, f"k{number}", number) for number in range(ROUNDS)]
            finally:
                process.database.close()

        return act

    given = together(*(acting(process) for process in processes), seconds=SECONDS * 4)
    assert all(one == given[0] for one in given)
    assert [effects[f"k{number}"] for number in range(ROUNDS)] == [[int(one)] for one in given[0]]


def test_a_completion_and_the_end_of_the_lease_at_once_agree(
    keys: Idempotency, replica: Callable[[], Idempotency]
) -> None:
    """Either the owner's word counts, or the key is unknown: never both, never neither."""
    sweeper = replica()
    barrier = threading.Barrier(2)
    owned: list[Checked] = []
    given: list[Any] = [None]

    def owner() -> None:
        try:
            for number in range(ROUNDS):
                owned.append(keys.take(f"k{number}", lease=10, lost=Lost.RECONCILE))
                barrier.wait(SECONDS)
                given[0] = keys.settle_all(keys.settlement(owned[-1], key=f"k{number}"))[0]
                barrier.wait(SECONDS)
                barrier.wait(SECONDS)
        finally:
            keys.database.close()

    def sweep() -> None:
        try:
            for number in range(ROUNDS):
                barrier.wait(SECONDS)
                # this process thinks that the lease has ended; only the database's own clock says whether it has
                sweeper.database.clock.shift_micros = 11_000_000
                sweeper.abandon()
                sweeper.database.clock.shift_micros = 0
                barrier.wait(SECONDS)
                told = sweeper.check(f"k{number}")
                if isinstance(given[0], Refusal):
                    assert reason(given[0]) == "expired"
                    assert told.outcome is Outcome.RECONCILE
                else:
                    assert good(given[0]).state is State.COMPLETED
                    assert told.outcome is Outcome.REPLAY
                barrier.wait(SECONDS)
        finally:
            sweeper.database.close()

    together(owner, sweep, seconds=SECONDS * 2)
