"""Settlements of messages, on every engine: by the newest unexpired token, once; and what becomes of late answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.access import Caller, Principal
from app.clock import micros
from app.errors import FORBIDDEN, NOT_FOUND, RESERVATION_LOST, SETTLEMENT_CONFLICT, Refusal
from app.ids import new_id
from app.primitives.outbox.model.commands import Beat, Granted, Settle, Settlement
from app.primitives.outbox.model.destinations import LateAck, OnLeaseLoss
from app.primitives.outbox.model.states import State, Verdict
from app.primitives.outbox.ops.settle import settle
from app.primitives.outbox.tables import outbox_keys, outbox_messages, outbox_reconciliations
from tests.primitives.outbox.driving import (
    Outbox,
    good,
    new_message,
    reason,
    rejected,
    released,
    retried,
    sent,
    unknown,
)

NEVER_AGAIN = 10 * 365 * 86_400.0


def lost(outcome: Any) -> str:
    assert isinstance(outcome, Refusal)
    assert outcome.code is RESERVATION_LOST
    return reason(outcome)


def taken(box: Outbox, name: str = "d", **fields: Any) -> Granted:
    box.record(name, **fields)
    return box.take(name)


def outcomes(grant: Granted) -> list[tuple[Settlement, State]]:
    return [
        (sent(grant, "ch_1"), State.SENT),
        (retried(grant, delay=60), State.DELAYED),
        (retried(grant, delay=0), State.PENDING),
        (rejected(grant), State.DEAD),
        (unknown(grant, reference="ch_1"), State.UNKNOWN),
        (released(grant), State.PENDING),
        (released(grant, delay=60), State.DELAYED),
    ]


@pytest.mark.parametrize("number", range(7))
def test_an_outcome_leads_to_its_state_and_is_answered_alike_ever_after(box: Outbox, number: int) -> None:
    grant = taken(box)
    settlement, state = outcomes(grant)[number]
    first = box.settle(settlement)
    assert (first.state, first.replayed) == (state, False)
    assert box.state(grant.id) is state
    again = box.settle(settlement)
    assert replace(again, replayed=False) == first
    assert again.replayed
    for other, _ in outcomes(grant):
        if other.digest != settlement.digest:
            (refused,) = box.settle_all(other)
            assert isinstance(refused, Refusal)
            assert refused.code is SETTLEMENT_CONFLICT
    assert box.state(grant.id) is state
    if state in (State.PENDING, State.DELAYED):  # also once somebody else has it
        box.move(61)
        box.promote()
        newer = box.take()
        assert replace(box.settle(settlement), replayed=False) == first
        assert box.settle(sent(newer)).state is State.SENT
        assert box.settle(settlement).replayed


def test_only_the_newest_unexpired_token_counts(box: Outbox) -> None:
    grant = taken(box, order="o")
    stranger = taken(box, order="p")
    for token, why in (
        ("nonsense", "unknown_token"),
        (stranger.token, "unknown_token"),
        (grant.token[:-1] + ("A" if grant.token[-1] != "A" else "B"), "unknown_token"),
    ):
        assert lost(box.settle_all(replace(sent(grant), token=token))[0]) == why
        assert lost(box.beat_all(Beat(grant.id, token))[0]) == why
    box.settle(released(grant))
    newer = box.take()
    assert lost(box.beat_all(Beat(grant.id, grant.token))[0]) == "superseded"
    assert box.state(grant.id) is State.SENDING
    box.move(61)
    for token in (newer.token, grant.token):
        assert lost(box.beat_all(Beat(newer.id, token))[0]) in ("expired", "superseded")
    assert lost(box.settle_all(sent(newer))[0]) == "expired"


def test_settlements_of_nothing_and_of_others_are_refused(box: Outbox) -> None:
    grant = taken(box)
    (refused,) = box.settle_all(replace(sent(grant), id=new_id()))
    assert isinstance(refused, Refusal)
    assert refused.code is NOT_FOUND
    other = Caller(Principal("k", "k", frozenset(), ("e",)), "r")
    for (outcome,) in (
        box.settle_all(sent(grant), caller=other),
        box.beat_all(Beat(grant.id, grant.token), caller=other),
    ):
        assert isinstance(outcome, Refusal)
        assert outcome.code is FORBIDDEN
    assert box.settle(sent(grant)).state is State.SENT


def test_one_bad_settlement_touches_no_other(box: Outbox) -> None:
    grants = [taken(box) for _ in range(3)]
    first, bad, last = box.settle_all(sent(grants[0]), replace(sent(grants[1]), token="x"), rejected(grants[2]))
    assert (good(first).state, lost(bad), good(last).state) == (State.SENT, "unknown_token", State.DEAD)
    assert box.settle(sent(grants[1])).state is State.SENT


def test_the_same_message_twice_in_one_unit_is_settled_once(box: Outbox) -> None:
    grant = taken(box)
    first, again, other = box.settle_all(sent(grant), sent(grant), rejected(grant))
    assert (good(first).replayed, good(again).replayed) == (False, True)
    assert isinstance(other, Refusal)
    assert other.code is SETTLEMENT_CONFLICT


def test_a_batch_of_sent_is_one_statement_for_each_distinct_content(box: Outbox) -> None:
    for _ in range(60):
        box.record()
    grants = box.claim(limit=60)
    items = [sent(grant, "a" if number % 2 else "b") for number, grant in enumerate(grants)]
    seen = box.statements(lambda: box.settle_all(*items))
    updates = [one for one in seen if one.startswith("UPDATE") and "outbox_messages" in one]
    assert len(updates) <= 2
    assert {row.reference for row in box.rows(outbox_messages)} == {"a", "b"}
    assert {row.state for row in box.rows(outbox_messages)} == {State.SENT}


def test_a_settlement_whose_commit_was_in_doubt_is_answered_alike(box: Outbox) -> None:
    for number in range(7):
        grant = taken(box, order=f"o{number}")
        settlement, state = outcomes(grant)[number]
        before, after = box.repeat(settle, Settle((settlement,), box.caller))
        assert good(before[0][0]).state is good(after[0][0]).state is state
        box.update(outbox_messages, outbox_messages.c.id == grant.id, state=int(State.ABORTED))


# -- attempts --------------------------------------------------------------------------------------------------------------


def test_a_retry_waits_for_its_backoff_and_the_last_attempt_is_the_last(box: Outbox) -> None:
    box.put("d", max_attempts=3, backoff_seconds=(10.0, 100.0))
    box.record()
    for pause in (10, 100):
        settled = box.settle(retried(box.take()))
        wait = settled.available_at - box.now
        assert micros(pause) * 0.99 < wait < micros(pause) * 1.21
        assert box.claim() == ()
        box.move(pause * 1.25)
        box.promote()
    grant = box.take()
    assert grant.attempt == 3
    assert box.settle(retried(grant)).state is State.DEAD
    assert box.message(grant.id).category == "refused"


def test_a_messages_own_budget_stands_over_that_of_its_destination(box: Outbox) -> None:
    box.put("d", max_attempts=9)
    grant = taken(box, max_attempts=1)
    assert grant.max_attempts == 1
    assert box.settle(retried(grant)).state is State.DEAD


def test_a_heartbeat_extends_and_never_shortens(box: Outbox) -> None:
    grant = taken(box)
    assert box.beat(grant, 600).expires_at >= grant.expires_at + micros(500)
    assert box.beat(grant, 5).expires_at >= grant.expires_at + micros(500)
    box.move(300)
    assert box.abandon() == 0
    assert box.beat(grant, None).expires_at >= box.now + micros(59)


# -- lost leases -----------------------------------------------------------------------------------------------------------


def test_what_a_lost_holder_may_have_sent_is_unknown(box: Outbox) -> None:
    """Fault 31: sent, and killed before it was marked; never sent again by itself."""
    grant = taken(box)
    box.move(61)
    assert box.abandon() == 1
    message = box.message(grant.id)
    assert (message.state, message.lease_losses, message.category) == (State.UNKNOWN, 1, "abandoned")
    box.move(NEVER_AGAIN)
    for sweep in (box.promote, box.abandon, box.purge):
        assert sweep() == 0
    assert box.claim() == ()


def test_a_destination_that_bears_a_repeat_gets_one_until_the_attempts_are_spent(box: Outbox) -> None:
    box.put("d", idempotent=True, on_lease_loss=OnLeaseLoss.RETRY, max_attempts=2, backoff_seconds=(5.0,))
    box.record()
    for state in (State.DELAYED, State.DEAD):
        grant = box.take()
        box.move(61)
        box.abandon()
        assert box.state(grant.id) is state
        box.move(10)
        box.promote()


def test_what_a_lost_holder_says_is_kept_as_evidence_once_for_each_thing(box: Outbox) -> None:
    grant = taken(box)
    box.move(61)
    for _ in range(3):
        assert lost(box.settle_all(sent(grant, "ch_1"))[0]) == "expired"
        box.abandon()
    assert lost(box.settle_all(rejected(grant))[0]) == "expired"
    assert box.state(grant.id) is State.UNKNOWN
    late = [event for event in box.events(grant.id) if event.kind == "late_answer"]
    assert [(event.category, event.reference) for event in late] == [("sent", "ch_1"), ("rejected", None)]
    box.reconcile(grant.id, Verdict.SENT)
    assert lost(box.settle_all(unknown(grant))[0]) == "settled"


def test_a_holder_cannot_fill_the_history(box: Outbox) -> None:
    grant = taken(box)
    box.move(61)
    box.abandon()
    for number in range(20):
        box.settle_all(sent(grant, f"ch_{number}"))
    assert box.kinds(grant.id).count("late_answer") == 5


@pytest.mark.parametrize("before", ["unknown", "pending", "held by another", "dead", "blocked"])
def test_a_late_sent_counts_where_the_destination_bears_it(box: Outbox, before: str) -> None:
    box.put("d", idempotent=True, late_ack=LateAck.ACCEPT, on_lease_loss=OnLeaseLoss.RETRY, backoff_seconds=(0.0,))
    if before == "unknown":
        box.put("d", idempotent=True, late_ack=LateAck.ACCEPT)
    grant = taken(box, order="o", max_attempts=1 if before in ("dead", "blocked") else 9)
    second = box.record(order="o")
    box.move(61)
    box.abandon()
    if before == "held by another":
        box.take()
    if before == "blocked":
        box.take()
        box.requeue()
    box.promote()
    wanted = {"pending": State.PENDING, "held by another": State.SENDING}.get(before) or State[before.upper()]
    assert box.state(grant.id) is wanted
    assert lost(box.settle_all(rejected(grant))[0])
    first = box.settle(sent(grant, "ch_1"))
    assert (first.state, first.replayed, box.message(grant.id).reference) == (State.SENT, False, "ch_1")
    assert box.settle(sent(grant, "ch_1")).replayed
    assert box.rows(outbox_reconciliations) == []
    waiting = box.state(second.id)
    assert waiting is (State.SENDING if before == "blocked" else State.PENDING), "its line goes on"


# -- messages that are deleted as they are sent ----------------------------------------------------------------------------


def test_a_message_that_is_deleted_leaves_its_key_and_what_replays_are_answered_from(box: Outbox) -> None:
    box.put("d", delete_sent=True, retention_seconds=100.0)
    box.record(key="k", order="o")
    behind = box.record(order="o")
    grant = box.take()
    box.settle(sent(grant))
    assert [row.id for row in box.rows(outbox_messages)] == [behind.id]
    assert box.take().id == behind.id
    assert box.settle(sent(grant)).replayed
    (refused,) = box.settle_all(rejected(grant))
    assert isinstance(refused, Refusal)
    assert refused.code is SETTLEMENT_CONFLICT
    assert lost(box.settle_all(replace(sent(grant), token=behind.id.hex()))[0]) == "unknown_token"
    (again,) = box.record_all(new_message(key="k", order="o"))
    assert (good(again).replayed, good(again).message.state) == (True, State.SENT)
    box.move(101)
    box.purge()
    assert [row.message_id for row in box.rows(outbox_keys)] == [behind.id]
    (fresh,) = box.record_all(new_message(key="k", order="o"))
    assert not good(fresh).replayed
