"""Races of messages: two real transactions at once, round after round, on real servers. `TENURE_TEST_ROUNDS` says how many."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from app.errors import IDEMPOTENCY_CONFLICT, Refusal
from app.primitives.outbox.model.destinations import LateAck, OnLeaseLoss
from app.primitives.outbox.model.states import State
from app.primitives.outbox.tables import outbox, outbox_messages
from tests.primitives.jobs.test_races import SECONDS, together
from tests.primitives.outbox.driving import Outbox, good, new_message, sent
from tests.primitives.outbox.lined import check

pytestmark = pytest.mark.engines("mariadb", "mysql", "postgresql")
ROUNDS = int(os.environ.get("TENURE_TEST_ROUNDS", "60"))

Body = Callable[[int], Any]


def race(one: tuple[Outbox, Body], two: tuple[Outbox, Body], between: Callable[[int, Any, Any], None]) -> None:
    """In every round both bodies at the same moment, each in the thread of its process; then `between` with what they gave."""
    barrier = threading.Barrier(2)
    given: list[Any] = [None, None]

    def acting(place: int, process: Outbox, body: Body) -> Callable[[], None]:
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


def test_of_two_recordings_of_one_key_one_makes_the_message(box: Outbox, replica: Callable[[], Outbox]) -> None:
    other = replica()

    def recording(process: Outbox) -> Body:
        return lambda number: process.record_all(new_message(key=f"k{number}", order=f"o{number % 3}"))[0]

    def between(_: int, one: Any, two: Any) -> None:
        assert good(one).message.id == good(two).message.id
        assert sorted((one.replayed, two.replayed)) == [False, True]

    race((box, recording(box)), (other, recording(other)), between)
    assert len(box.rows(outbox_messages)) == ROUNDS
    check(box)


def test_of_a_recording_and_a_producers_row_with_one_key_one_is_the_message(
    box: Outbox, replica: Callable[[], Outbox]
) -> None:
    other = replica()

    def adopt(number: int) -> None:
        other.write(message_key=f"k{number}", payload='"sql"', ordering_key="o")
        other.adopt()

    def between(_: int, outcome: Any, __: Any) -> None:
        if isinstance(outcome, Refusal):
            assert outcome.code is IDEMPOTENCY_CONFLICT

    race((box, lambda number: box.record_all(new_message(key=f"k{number}", order="o"))[0]), (other, adopt), between)
    while box.adopt():
        pass
    assert len(box.rows(outbox_messages)) == ROUNDS
    assert {row.state for row in box.rows(outbox)} <= {"set_aside"}
    check(box)


@pytest.mark.parametrize("bears", [False, True])
def test_a_settlement_against_the_end_of_its_lease_counts_or_is_evidence(
    box: Outbox, replica: Callable[[], Outbox], bears: bool
) -> None:
    """riverqueue/river#1302 (scenario 3): the sweep has read the row, and the holder settles before its UPDATE."""
    if bears:
        box.put("d", idempotent=True, on_lease_loss=OnLeaseLoss.RETRY, late_ack=LateAck.ACCEPT)
    sweeper = replica()
    sweeper.move(61)  # to this process the lease has ended, to the holder's it has not
    grants = [_taken(box)]

    def between(_: int, outcome: Any, __: Any) -> None:
        state = box.state(grants[-1].id)
        if bears:
            assert (good(outcome).state, state) == (State.SENT, State.SENT)
        elif isinstance(outcome, Refusal):
            assert state is State.UNKNOWN
            assert "late_answer" in box.kinds(grants[-1].id)
        else:
            assert state is State.SENT
        grants.append(_taken(box))

    race(
        (box, lambda _: box.settle_all(sent(grants[-1]))[0]),
        (sweeper, lambda _: sweeper.abandon()),
        between,
    )
    check(box)


def _taken(box: Outbox) -> Any:
    message = box.record()
    (grant,) = box.claim()
    assert grant.id == message.id
    return grant
