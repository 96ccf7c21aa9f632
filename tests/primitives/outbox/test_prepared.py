"""Prepared messages, on every engine: held back, decided once, and asked about when their producers stay silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.access import Caller, Principal
from app.clock import micros
from app.errors import FORBIDDEN, IDEMPOTENCY_CONFLICT, NOT_FOUND, STATE_CONFLICT, Refusal
from app.ids import new_id
from app.outgoing.replies import Fate, Reply, not_sent
from app.primitives.audit.tables import audit
from app.primitives.outbox.model.checks import Answer, read
from app.primitives.outbox.model.commands import Decide, Decided, Prepare
from app.primitives.outbox.model.states import Check, Decision, State
from app.primitives.outbox.ops.decide import decide
from app.primitives.outbox.tables import outbox_checks, outbox_events, outbox_messages
from tests.primitives.jobs.test_races import together
from tests.primitives.outbox.driving import Outbox, good, new_message, rejected, sent

on_servers = pytest.mark.engines("mariadb", "mysql", "postgresql")
ROUNDS = 100
COMMITTED = Answer(Decision.CONFIRMED, "committed")
ROLLED_BACK = Answer(Decision.ABORTED, "rolled_back")
UNDECIDED = Answer(None, "undecided")
UNREACHED = Answer(None, "connect: The host refused the connection.", reached=False)
BOTH = (Decision.CONFIRMED, Decision.ABORTED)


def refused(outcome: Any) -> Refusal:
    assert isinstance(outcome, Refusal)
    return outcome


def decided(box: Outbox, message_id: bytes, decision: Decision) -> Decided | Refusal:
    return box.decide_all(Decide(message_id, decision, box.caller, new_id()))[0]


def check_of(box: Outbox, message_id: bytes) -> Any:
    (row,) = box.rows(outbox_checks, outbox_checks.c.message_id == message_id)
    return row


# -- held back, and decided ------------------------------------------------------------------------------------------------


def test_a_prepared_message_is_in_no_claim_until_it_is_confirmed(box: Outbox) -> None:
    message = box.prepare()
    assert (message.state, message.decide_at) == (State.PREPARED, message.created_at + micros(60))
    assert box.claim() == ()
    confirmed = box.confirm(message.id)
    assert (confirmed.message.state, confirmed.replayed) == (State.PENDING, False)
    assert confirmed.message.message_key == message.message_key
    assert box.take().id == message.id
    assert box.rows(outbox_checks) == [], "what is decided is not asked about"


def test_an_aborted_message_is_never_sent_and_is_forgotten_in_time(box: Outbox) -> None:
    message = box.prepare()
    assert box.abort(message.id).message.state is State.ABORTED
    assert box.claim() == ()
    assert box.kinds(message.id) == ["aborted"]
    assert box.requeue().changed == 0
    assert box.purge_messages(State.ABORTED).changed == 1
    assert box.rows(outbox_messages) == []


@pytest.mark.parametrize("first", BOTH)
def test_the_first_decision_stands_and_the_same_again_is_replayed(box: Outbox, first: Decision) -> None:
    """rocketmq#2694: the verdict of a check and a late commit; whoever is first fences the other."""
    message = box.prepare()
    box.decide(message.id, first)
    again = box.decide(message.id, first)
    assert again.replayed
    (other,) = {*BOTH} - {first}
    refusal = refused(decided(box, message.id, other))
    assert (refusal.code, refusal.extra["decision"]) == (STATE_CONFLICT, first.value)
    assert box.state(message.id) is (State.PENDING if first is Decision.CONFIRMED else State.ABORTED)
    assert len(box.events(message.id)) == 1


def test_the_loser_is_told_also_after_the_winner_was_delivered_died_or_was_deleted(box: Outbox) -> None:
    box.put("deleted", delete_sent=True)
    delivered, died, deleted = box.prepare(), box.prepare(), box.prepare(destination="deleted")
    for message, destination, settlement in (
        (delivered, "d", sent),
        (died, "d", rejected),
        (deleted, "deleted", sent),
    ):
        box.confirm(message.id)
        box.settle(settlement(box.take(destination)))
        refusal = refused(decided(box, message.id, Decision.ABORTED))
        assert (refusal.code, refusal.extra["decision"]) == (STATE_CONFLICT, "confirmed")
        assert box.confirm(message.id).replayed


def test_only_what_was_prepared_takes_a_decision(box: Outbox) -> None:
    message = box.record()
    for decision in BOTH:
        assert refused(decided(box, message.id, decision)).code is STATE_CONFLICT
        assert refused(decided(box, new_id(), decision)).code is NOT_FOUND
    assert box.state(message.id) is State.PENDING


def test_a_key_that_is_limited_to_other_names_decides_nothing(box: Outbox) -> None:
    message = box.prepare()
    other = Caller(Principal("k", "k", frozenset(), ("other-*",)), "request-2")
    (outcome,) = box.decide_all(Decide(message.id, Decision.CONFIRMED, other, new_id()))
    assert refused(outcome).code is FORBIDDEN
    assert box.state(message.id) is State.PREPARED


def test_decisions_of_one_unit_are_taken_in_their_order(box: Outbox) -> None:
    message = box.prepare()
    commands = [Decide(message.id, decision, box.caller, new_id()) for decision in (*BOTH, Decision.CONFIRMED)]
    first, second, third = box.decide_all(*commands)
    assert not good(first).replayed
    assert refused(second).code is STATE_CONFLICT
    assert good(third).replayed


def test_a_decision_whose_commit_was_in_doubt_is_answered_as_the_first(box: Outbox) -> None:
    message = box.prepare(order="o")
    before, after = box.repeat(decide, Decide(message.id, Decision.CONFIRMED, box.caller, new_id()))
    assert [good(one).replayed for one in (*before, *after)] == [False, False]
    assert box.kinds(message.id) == ["confirmed"]


def test_a_message_key_gives_its_prepared_message_again_and_other_terms_are_other_content(box: Outbox) -> None:
    prepare = Prepare(micros(60), "http://127.0.0.1:1/check")
    message = box.record(key="k", prepare=prepare)
    (again,) = box.record_all(new_message("d", "t", key="k", prepare=prepare))
    assert good(again).replayed
    assert good(again).message == message
    for other in (None, Prepare(micros(61), prepare.check_url), Prepare(micros(60))):
        (outcome,) = box.record_all(new_message("d", "t", key="k", prepare=other))
        assert refused(outcome).code is IDEMPOTENCY_CONFLICT


def test_a_confirmed_message_waits_for_its_own_time(box: Outbox) -> None:
    message = box.prepare(available_at=box.now + micros(3600))
    confirmed = box.confirm(message.id).message
    assert (confirmed.state, confirmed.due_at) == (State.DELAYED, message.available_at)
    box.move(3601)
    assert box.promote() == 1
    assert box.take().id == message.id


# -- lines -----------------------------------------------------------------------------------------------------------------


def test_what_may_yet_be_aborted_holds_nobody_up_and_confirmed_ones_follow_in_that_order(box: Outbox) -> None:
    early, late, gone = (box.prepare(order="o") for _ in range(3))
    plain = box.record(order="o")
    assert box.state(plain.id) is State.PENDING
    box.abort(gone.id)
    assert box.confirm(late.id).message.state is State.BLOCKED
    assert box.confirm(early.id).message.state is State.BLOCKED
    order = []
    while grants := box.claim():
        order += [grant.id for grant in grants]
        box.settle(sent(grants[0]))
    assert order == [plain.id, late.id, early.id]


# -- checks ----------------------------------------------------------------------------------------------------------------


def test_nobody_is_asked_before_the_time_has_passed_and_that_costs_no_budget(box: Outbox) -> None:
    """rocketmq#8311: the immunity window spends no budget."""
    message = box.prepare(60)
    for _ in range(5):
        assert box.questions() == ()
    assert check_of(box, message.id).asked == 0
    box.move(61)
    (question,) = box.questions()
    assert (question.id, question.message_key) == (message.id, message.message_key)
    assert box.questions() == (), "one asks at a time"


@pytest.mark.parametrize(("answer", "state"), [(COMMITTED, State.PENDING), (ROLLED_BACK, State.ABORTED)])
def test_what_the_producer_answers_is_its_decision(box: Outbox, answer: Answer, state: State) -> None:
    message = box.prepare()
    box.move(61)
    box.questions()
    box.tell(message.id, answer)
    assert box.state(message.id) is state
    assert [event.actor for event in box.events(message.id)] == ["check"]
    assert box.rows(outbox_checks) == []


def test_a_decision_that_was_quicker_than_the_answer_stands(box: Outbox) -> None:
    message = box.prepare()
    box.move(61)
    box.questions()
    box.abort(message.id)
    for answer in (COMMITTED, UNDECIDED):
        box.tell(message.id, answer)
    assert box.state(message.id) is State.ABORTED
    assert box.rows(outbox_checks) == []


def test_a_producer_that_decides_nothing_is_asked_by_a_backoff_until_the_budget_is_spent(box: Outbox) -> None:
    box.host.set(outbox_check_budget=3, outbox_ask_backoff_seconds=(100.0,))
    message = box.prepare()
    box.move(61)
    for asked in (1, 2, 3):
        (question,) = box.questions()
        box.tell(question.id, UNDECIDED)
        assert check_of(box, message.id).asked == asked
        assert box.questions() == ()
        box.move(121)
    assert box.questions() == ()
    assert check_of(box, message.id).state == Check.OPERATOR
    assert box.state(message.id) is State.PREPARED, "nobody guesses"
    box.abort(message.id)
    (entry,) = box.rows(audit, audit.c.action == "outbox.decide_message")
    assert entry.actor == box.caller.principal.key_id


def test_a_producer_that_cannot_be_reached_spends_no_budget_and_is_left_to_an_operator_in_the_end(box: Outbox) -> None:
    """rocketmq#9500: counts were spent without anybody being asked."""
    box.host.set(outbox_check_budget=2, outbox_ask_backoff_seconds=(100.0,), outbox_ask_give_up_seconds=3600.0)
    message = box.prepare()
    box.move(61)
    for _ in range(5):
        (question,) = box.questions()
        box.tell(question.id, UNREACHED)
        box.move(121)
    assert check_of(box, message.id).asked == 0
    box.move(3600)
    assert box.questions() == ()
    assert check_of(box, message.id).state == Check.OPERATOR


def test_without_a_url_an_operator_decides_when_the_time_has_passed(box: Outbox) -> None:
    silent, asked = box.prepare(url=None), box.prepare()
    box.move(61)
    assert [question.id for question in box.questions()] == [asked.id]
    assert check_of(box, silent.id).state == Check.OPERATOR
    box.move(3600)
    assert [question.id for question in box.questions()] == [asked.id], "who died while it asked is followed by another"
    assert box.confirm(silent.id).message.state is State.PENDING


def test_a_message_that_is_not_prepared_pays_nothing(box: Outbox) -> None:
    box.record()
    assert box.rows(outbox_checks) == []


# -- what answers mean -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "decision"),
    [
        (b"committed", Decision.CONFIRMED),
        (b" rolled_back\r\n", Decision.ABORTED),
        (b'"committed"', Decision.CONFIRMED),
        (b'{"decision": "rolled_back"}', Decision.ABORTED),
        (b'{"status": "committed", "state": "committed"}', Decision.CONFIRMED),
        (b'{"status": "committed", "state": "rolled_back"}', None),
        (b'{"decision": "undecided"}', None),
        (b"undecided", None),
        (b"COMMITTED", None),
        (b"not committed", None),
        (b'{"ok": true}', None),
        (b'{"decision": ["committed"]}', None),
        (b"[" * 4000, None),
        (b'{"decision":' * 300, None),
        (b"\xff\xfe", None),
        (b"", None),
    ],
)
def test_only_a_clear_word_decides(body: bytes, decision: Decision | None) -> None:
    assert read(Reply(Fate.ANSWERED, status=200, body=body, body_complete=True)).decision is decision


def test_only_a_whole_2xx_answer_decides() -> None:
    for status in (301, 404, 410, 500):
        assert read(Reply(Fate.ANSWERED, status=status, body=b"rolled_back", body_complete=True)).decision is None
    assert read(Reply(Fate.ANSWERED, status=200, body=b"committed", body_complete=False)).decision is None
    assert read(Reply(Fate.MAYBE_SENT, "reset", status=200, body=b"committed")).decision is None
    assert not read(not_sent("connect")).reached


# -- races -----------------------------------------------------------------------------------------------------------------


@on_servers
def test_of_confirm_abort_and_an_answer_at_once_exactly_one_decides(box: Outbox, replica: Callable[[], Outbox]) -> None:
    others = [replica() for _ in range(2)]
    messages = [box.prepare(order=f"o{number % 5}") for number in range(ROUNDS)]
    box.move(61)
    while box.questions():
        pass

    def confirming() -> list[Any]:
        return [decided(box, message.id, Decision.CONFIRMED) for message in messages]

    def aborting() -> list[Any]:
        return [decided(others[0], message.id, Decision.ABORTED) for message in messages]

    def answering() -> None:
        for message in reversed(messages):
            others[1].tell(message.id, ROLLED_BACK)

    try:
        confirmed, aborted, _ = together(confirming, aborting, answering)
    finally:
        for one in others:
            one.database.close()
    for message, yes, no in zip(messages, confirmed, aborted, strict=True):
        assert isinstance(yes, Refusal) is not isinstance(no, Refusal)
        assert (box.state(message.id) is State.ABORTED) is isinstance(yes, Refusal)
    assert len(box.rows(outbox_events)) == ROUNDS
    sent_ids = []
    while grants := box.claim(limit=50):
        for grant in grants:
            box.settle(sent(grant))
            sent_ids.append(grant.id)
    good_ids = [one.id for one, yes in zip(messages, confirmed, strict=True) if not isinstance(yes, Refusal)]
    assert sorted(sent_ids) == sorted(good_ids)
