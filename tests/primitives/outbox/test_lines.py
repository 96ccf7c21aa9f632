"""Ordering keys, on every engine: one after the other, whatever becomes of the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.primitives.outbox.model.destinations import OnLeaseLoss
from app.primitives.outbox.model.states import State, Verdict
from app.primitives.outbox.tables import outbox_lines, outbox_places
from tests.primitives.jobs.test_races import together
from tests.primitives.outbox.driving import Outbox, rejected, released, retried, sent, unknown
from tests.primitives.outbox.lined import check

ROUNDS = 40


def states(box: Outbox, *messages: Any) -> list[State]:
    return [box.state(message.id) for message in messages]


def test_messages_of_one_key_are_sent_one_after_the_other_and_others_go_on(box: Outbox) -> None:
    first, second, third = (box.record(order="o") for _ in range(3))
    other, plain = box.record(order="p"), box.record()
    assert states(box, first, second, third, other, plain) == [
        State.PENDING, State.BLOCKED, State.BLOCKED, State.PENDING, State.PENDING,
    ]  # fmt: skip
    grants = box.claim(limit=100)
    assert [grant.id for grant in grants] == [first.id, other.id, plain.id]
    for grant in grants:
        box.settle(sent(grant))
    for message in (second, third):
        check(box)
        grant = box.take()
        assert grant.id == message.id
        assert box.claim() == ()
        box.settle(sent(grant))
    check(box)


@pytest.mark.parametrize("outcome", [sent, rejected])
def test_who_is_sent_or_dead_lets_the_next_go(box: Outbox, outcome: Callable[[Any], Any]) -> None:
    _, second = box.record(order="o"), box.record(order="o")
    box.settle(outcome(box.take()))
    assert box.state(second.id) is State.PENDING
    check(box)


@pytest.mark.parametrize("outcome", [lambda grant: retried(grant, delay=60), unknown, released])
def test_who_comes_again_or_is_in_doubt_keeps_its_place(box: Outbox, outcome: Callable[[Any], Any]) -> None:
    first, second = box.record(order="o"), box.record(order="o")
    box.settle(outcome(box.take()))
    assert box.state(second.id) is State.BLOCKED
    check(box)
    box.move(61)
    box.promote()
    if box.state(first.id) is State.UNKNOWN:
        box.reconcile(first.id, Verdict.RETRY)
    grant = box.take()
    assert grant.id == first.id
    assert box.claim() == ()
    box.settle(sent(grant))
    assert box.take().id == second.id


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_verdict_lets_the_next_go_or_sends_the_first_again(box: Outbox, verdict: Verdict) -> None:
    first, second = box.record(order="o"), box.record(order="o")
    box.settle(unknown(box.take()))
    box.reconcile(first.id, verdict)
    check(box)
    assert box.take().id == (first.id if verdict is Verdict.RETRY else second.id)


def test_a_message_that_is_requeued_stands_where_it_stood_behind_the_one_under_way(box: Outbox) -> None:
    first, second, third = (box.record(order="o") for _ in range(3))
    box.settle(rejected(box.take()))
    grant = box.take()
    assert grant.id == second.id
    assert box.requeue().changed == 1
    assert states(box, first, second, third) == [State.BLOCKED, State.SENDING, State.BLOCKED]
    check(box)
    box.settle(sent(grant))
    order = []
    while grants := box.claim():
        order.append(grants[0].id)
        box.settle(sent(grants[0]))
    assert order == [first.id, third.id]


def test_several_that_are_requeued_come_in_their_old_order(box: Outbox) -> None:
    made = [box.record(order="o").id for _ in range(4)]
    for _ in range(4):
        box.settle(rejected(box.take()))
    assert box.requeue().changed == 4
    check(box)
    order = []
    while grants := box.claim(limit=9):
        (grant,) = grants
        order.append(grant.id)
        box.settle(sent(grant))
    assert order == made


def test_one_key_at_two_destinations_is_two_lines(box: Outbox) -> None:
    box.put("e")
    assert states(box, box.record("d", order="o"), box.record("e", order="o")) == [State.PENDING, State.PENDING]


def test_types_of_one_destination_share_a_line(box: Outbox) -> None:
    assert states(box, box.record(type_="a", order="o"), box.record(type_="b", order="o")) == [
        State.PENDING,
        State.BLOCKED,
    ]


def test_a_message_for_later_holds_up_those_behind_it(box: Outbox) -> None:
    first, second = box.record(order="o", available_at=box.now + 3600 * 10**6), box.record(order="o")
    assert states(box, first, second) == [State.DELAYED, State.BLOCKED]
    box.move(3601)
    box.promote()
    box.settle(sent(box.take()))
    assert box.take().id == second.id


def test_one_behind_that_is_for_later_waits_for_its_time_when_it_is_next(box: Outbox) -> None:
    box.record(order="o")
    second = box.record(order="o", available_at=box.now + 3600 * 10**6)
    box.settle(sent(box.take()))
    assert box.state(second.id) is State.DELAYED
    assert box.claim() == ()
    box.move(3601)
    assert box.promote() == 1
    assert box.take().id == second.id


def test_lines_are_kept_no_longer_than_their_messages(box: Outbox) -> None:
    for _ in range(3):
        box.record(order="o")
    while grants := box.claim():
        box.settle(sent(grants[0]))
        check(box)
    box.move(40 * 86_400)
    while box.purge():
        check(box)
    assert box.rows(outbox_lines) == box.rows(outbox_places) == []
    assert box.state(box.record(order="o").id) is State.PENDING


def test_a_lost_holder_of_a_destination_that_bears_repeats_keeps_its_place(box: Outbox) -> None:
    box.put("d", idempotent=True, on_lease_loss=OnLeaseLoss.RETRY, backoff_seconds=(0.0,), max_attempts=2)
    first, second = box.record(order="o"), box.record(order="o")
    for expected in (State.BLOCKED, State.PENDING):
        assert box.take().id == first.id
        box.move(61)
        box.abandon()
        box.promote()
        assert box.state(second.id) is expected
        check(box)


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_who_comes_and_who_leaves_at_once_leave_nobody_blocked(box: Outbox, replica: Callable[[], Outbox]) -> None:
    """As solid_queue PR #689 (scenario 21): the recording decides "blocked" while the one that settles finds nobody to let go."""
    other = replica()

    def recording() -> None:
        for _ in range(ROUNDS):
            box.record(order="o")

    def sending() -> int:
        count = 0
        try:
            while count < ROUNDS:
                for grant in other.claim(limit=3):
                    other.settle([sent, rejected][count % 2](grant))
                    count += 1
        finally:
            other.database.close()
        return count

    assert together(recording, sending)[1] == ROUNDS
    check(box)
    assert box.claim() == ()
