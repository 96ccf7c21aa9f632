"""Finding out about unknown messages, on every engine: reservations of reconcilers, budgets, and whose verdict stands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.access import Caller, Principal
from app.errors import FORBIDDEN, NOT_FOUND, RESERVATION_LOST, SETTLEMENT_CONFLICT, STATE_CONFLICT, Refusal
from app.outgoing.replies import Fate, Reply, not_sent
from app.primitives.audit.tables import audit
from app.primitives.outbox.model.destinations import LateAck, Reconcile, ReconcileMode
from app.primitives.outbox.model.finding import Doubtful, Reading, read_reply
from app.primitives.outbox.model.records import Reconcile as OperatorVerdict
from app.primitives.outbox.model.states import Doubt, State, Verdict
from app.primitives.outbox.ops import finding
from app.primitives.outbox.tables import outbox_events, outbox_messages, outbox_reconciliations
from tests.primitives.jobs.test_races import together
from tests.primitives.outbox.driving import Outbox, good, reason, rejected, sent, unknown

on_servers = pytest.mark.engines("mariadb", "mysql", "postgresql")
ROUNDS = 60
URL = "http://127.0.0.1:1/reconcile"
ASKED = Reconcile(ReconcileMode.HTTP, url=URL)


def doubt_of(box: Outbox, message_id: bytes) -> Any:
    (row,) = box.rows(outbox_reconciliations, outbox_reconciliations.c.message_id == message_id)
    return row


def take(box: Outbox, **fields: Any) -> Doubtful:
    (grant,) = box.claim_doubts(**fields)
    return grant


def lost(outcome: Any) -> str:
    assert isinstance(outcome, Refusal)
    assert outcome.code is RESERVATION_LOST
    return reason(outcome)


# -- reservations of reconcilers -------------------------------------------------------------------------------------------


def test_a_reconciler_is_given_unknown_messages_and_nothing_else(box: Outbox) -> None:
    box.record()
    box.settle(sent(box.take()))
    box.record()
    box.settle(rejected(box.take()))
    first, second = box.doubt(order="o"), box.doubt(type_="u")
    box.record()
    grant = take(box)
    assert (grant.message.id, grant.message.state, grant.payload) == (first.id, State.UNKNOWN, b"{}")
    assert (grant.message.message_key, grant.message.ordering_key) == (first.message_key, "o")
    assert (grant.asked, grant.budget) == (1, 10)
    assert [one.message.id for one in box.claim_doubts(limit=100)] == [second.id]
    assert box.claim_doubts() == ()
    assert box.state(first.id) is State.UNKNOWN


def test_a_claim_takes_the_types_and_destinations_that_it_names(box: Outbox) -> None:
    box.put("e")
    mine, _, other = box.doubt(type_="a"), box.doubt(type_="b"), box.doubt("e", type_="a")
    assert [one.message.id for one in box.claim_doubts("d", limit=9, types=("a",))] == [mine.id]
    assert [one.message.id for one in box.claim_doubts("e", "d", limit=1)] == [other.id]


@pytest.mark.parametrize(
    ("verdict", "state"),
    [(Verdict.SENT, State.SENT), (Verdict.RETRY, State.PENDING), (Verdict.DEAD, State.DEAD)],
)
def test_a_verdict_decides_and_is_audited_with_its_evidence(box: Outbox, verdict: Verdict, state: State) -> None:
    message = box.doubt()
    grant = take(box)
    found = good(box.find(grant, verdict, b'{"seen":1.0}', reference="ch_1"))
    assert (found.state, found.replayed, found.needs_operator) == (state, False, False)
    assert box.rows(outbox_reconciliations) == []
    (event,) = [one for one in box.events(message.id) if one.kind == "reconciled"]
    assert (bytes(event.detail), event.category, event.reference) == (b'{"seen":1.0}', verdict.value, "ch_1")
    assert event.actor == box.caller.principal.key_id
    (entry,) = box.rows(audit, audit.c.action == "outbox.reconcile_message")
    assert json.loads(entry.details)["verdict"] == verdict.value
    assert box.message(message.id).attempt == (0 if verdict is Verdict.RETRY else 1)


def test_a_verdict_may_be_repeated_and_not_be_changed(box: Outbox) -> None:
    box.doubt()
    grant = take(box)
    good(box.find(grant, Verdict.DEAD))
    assert good(box.find(grant, Verdict.DEAD)).replayed
    for verdict, evidence in ((Verdict.SENT, b'"seen"'), (Verdict.DEAD, b'"else"'), (None, b'"seen"')):
        outcome = box.find(grant, verdict, evidence)
        assert isinstance(outcome, Refusal)
        assert outcome.code is SETTLEMENT_CONFLICT


def test_a_verdict_whose_commit_was_in_doubt_is_answered_as_the_first(box: Outbox) -> None:
    for verdict in (Verdict.SENT, None):
        box.doubt()
        grant = take(box)
        said = finding.Finding(grant.message.id, grant.token, verdict, b"1", b"d" * 32, box.caller)
        before, after = box.repeat(finding.find, said)
        assert [good(one).replayed for one in (*before, *after)] == [False, False]


def test_what_could_not_be_found_out_is_looked_at_again_by_a_backoff_until_the_budget_is_spent(box: Outbox) -> None:
    """openclaw#125546 (scenario 35): "unresolved" was retried for ever, 1,350 times."""
    box.put("d", reconcile_budget=3)
    box.host.set(outbox_ask_backoff_seconds=(100.0,))
    message = box.doubt()
    for asked in (1, 2, 3):
        grant = take(box)
        assert (grant.asked, grant.budget) == (asked, 3)
        found = good(box.find(grant, None, b'"no answer"'))
        assert good(box.find(grant, None, b'"no answer"')).replayed
        assert found.needs_operator is (asked == 3)
        assert (found.next_at is None) is (asked == 3)
        assert box.claim_doubts() == ()
        box.move(121)
        assert box.look() == (asked < 3)
    assert box.claim_doubts() == ()
    assert doubt_of(box, message.id).state == Doubt.OPERATOR
    assert [event.kind for event in box.events(message.id)].count("undecided") == 3
    assert good(box.reconcile(message.id, Verdict.SENT)).message.state is State.SENT


def test_a_reconciler_that_is_lost_costs_one_of_the_budget_and_its_late_verdict_is_refused(box: Outbox) -> None:
    box.put("d", reconcile_budget=2)
    message = box.doubt()
    first = take(box, lease=60)
    box.move(61)
    assert lost(box.find(first, Verdict.SENT)) == "expired"
    assert box.look() == 1
    second = take(box)
    assert second.asked == 2
    assert second.fence > first.fence
    assert lost(box.find(first, Verdict.SENT)) == "superseded"
    box.move(3601)
    box.look()
    assert doubt_of(box, message.id).state == Doubt.OPERATOR
    assert box.state(message.id) is State.UNKNOWN


def test_a_repeated_claim_id_gives_the_same_grants_while_they_are_held(box: Outbox) -> None:
    box.doubt()
    box.doubt()
    first = take(box, claim_id="c" * 16)
    again = take(box, claim_id="c" * 16)
    assert again == first
    good(box.find(first, Verdict.SENT))
    (other,) = box.claim_doubts(claim_id="c" * 16)
    assert other.message.id != first.message.id


def test_a_claim_whose_commit_was_in_doubt_is_answered_as_before(box: Outbox) -> None:
    box.doubt()
    before, after = box.repeat(finding.claim, box.wanted(limit=1))
    assert [one.grants[0].token for one in before] == [one.grants[0].token for one in after]


def test_grants_that_reached_nobody_cost_nothing(box: Outbox) -> None:
    box.doubt()
    (claimed,) = box.database.run(finding.claim, [box.wanted(limit=1)])
    box.database.run(finding.give_back, [claimed])
    grant = take(box)
    assert grant.asked == 1
    assert lost(box.find(claimed.grants[0], Verdict.SENT)) == "superseded"


def test_tokens_of_messages_and_of_doubts_are_not_each_others(box: Outbox) -> None:
    box.record()
    held = box.take()
    box.settle(unknown(held))
    grant = take(box)
    assert lost(box.find(replace(grant, token=held.token), Verdict.SENT)) == "superseded"
    (outcome,) = box.settle_all(sent(replace(held, token=grant.token)))
    assert isinstance(outcome, Refusal)
    assert box.state(grant.message.id) is State.UNKNOWN


def test_a_key_that_is_limited_to_other_names_gives_no_verdict(box: Outbox) -> None:
    box.doubt()
    grant = take(box)
    box.caller = Caller(Principal("k", "k", frozenset(), ("other-*",)), "request-2")
    outcome = box.find(grant, Verdict.SENT)
    assert isinstance(outcome, Refusal)
    assert outcome.code is FORBIDDEN


# -- whose verdict stands --------------------------------------------------------------------------------------------------


def test_an_operator_who_is_quicker_fences_the_reconciler(box: Outbox) -> None:
    message = box.doubt()
    grant = take(box)
    good(box.reconcile(message.id, Verdict.RETRY))
    outcome = box.find(grant, Verdict.SENT)
    assert lost(outcome) == "settled"
    assert outcome.extra["verdict"] == "retry"
    assert box.take().id == message.id


def test_a_late_answer_that_counts_fences_the_reconciler_and_one_that_does_not_is_evidence(box: Outbox) -> None:
    box.put("kept")
    box.put("counts", idempotent=True, late_ack=LateAck.ACCEPT)
    for name, state in (("kept", State.UNKNOWN), ("counts", State.SENT)):
        message = box.record(name)
        held = box.take(name, lease=60)
        box.move(61)
        box.abandon()
        (grant,) = box.claim_doubts(name)
        box.settle_all(sent(held))
        assert box.state(message.id) is state
        outcome = box.find(grant, Verdict.DEAD)
        assert isinstance(outcome, Refusal) is (state is State.SENT)


def test_no_housekeeping_touches_what_is_unknown(box: Outbox) -> None:
    message = box.doubt()
    box.move(10 * 365 * 86_400)
    assert box.purge() == 0
    assert box.requeue().changed == box.release_stale().changed == 0
    assert [box.purge_messages(state).changed for state in (State.SENT, State.DEAD, State.ABORTED)] == [0, 0, 0]
    assert box.claim() == ()
    assert box.state(message.id) is State.UNKNOWN
    assert box.claim_doubts() != ()


def test_a_message_that_becomes_unknown_again_is_a_new_doubt(box: Outbox) -> None:
    message = box.doubt()
    first = take(box)
    good(box.find(first, Verdict.RETRY))
    box.settle(unknown(box.take()))
    second = take(box)
    assert (second.message.id, second.asked) == (message.id, 1)
    outcome = box.find(first, Verdict.SENT)
    assert isinstance(outcome, Refusal)
    assert outcome.code is SETTLEMENT_CONFLICT, "it has said `retry`, of the older doubt"
    good(box.find(second, Verdict.SENT))
    assert box.rows(outbox_reconciliations) == []


# -- the service asks over HTTP --------------------------------------------------------------------------------------------


def test_reconcilers_leave_a_destination_that_is_asked_alone(box: Outbox) -> None:
    box.put("asked", reconcile=ASKED)
    (outcome,) = box.database.run(finding.claim, [box.wanted("d", "asked")])
    assert isinstance(outcome, Refusal)
    assert (outcome.code, outcome.extra["destinations"]) == (STATE_CONFLICT, ["asked"])


def test_one_process_asks_at_a_time_and_its_answer_decides(box: Outbox) -> None:
    box.put("asked", reconcile=ASKED)
    message = box.doubt("asked", order="o")
    (inquiry,) = box.inquire()
    assert box.inquire() == ()
    body = json.loads(inquiry.body)
    assert (inquiry.url, body["message"]["message_key"], body["asked"]) == (URL, message.message_key, 1)
    box.inquired(inquiry, Reading(Verdict.SENT, b'{"answer":1}', "ch_1"))
    assert box.message(message.id).reference == "ch_1"
    assert box.state(message.id) is State.SENT
    assert box.rows(outbox_reconciliations) == []


def test_an_answer_that_comes_after_another_decision_is_nothing(box: Outbox) -> None:
    box.put("asked", reconcile=ASKED)
    message = box.doubt("asked")
    (inquiry,) = box.inquire()
    good(box.reconcile(message.id, Verdict.RETRY))
    box.inquired(inquiry, Reading(Verdict.DEAD, b"1"))
    assert box.state(message.id) is State.PENDING
    box.settle(unknown(box.take("asked")))
    box.inquired(inquiry, Reading(None, b"1"))
    assert doubt_of(box, message.id).state == Doubt.OPEN, "an answer to an older doubt is none to this one"


def test_asking_ends_with_an_operator_and_what_reached_nobody_spends_nothing(box: Outbox) -> None:
    box.put("asked", reconcile=ASKED, reconcile_budget=2)
    box.host.set(outbox_ask_backoff_seconds=(100.0,), outbox_ask_give_up_seconds=3600.0)
    message = box.doubt("asked")
    for reached in (False, True, False, True):
        (inquiry,) = box.inquire()
        box.inquired(inquiry, Reading(None, b"1", reached=reached))
        box.move(121)
        box.look()
    assert box.inquire() == ()
    assert doubt_of(box, message.id).state == Doubt.OPERATOR
    away = box.doubt("asked")
    while doubt_of(box, away.id).state != Doubt.OPERATOR:
        (inquiry,) = box.inquire()
        box.inquired(inquiry, Reading(None, b"1", reached=False))
        assert doubt_of(box, away.id).attempt in (0, 2)
        box.move(1000)
        box.look()


def test_a_process_that_dies_while_it_asks_is_followed_by_another(box: Outbox) -> None:
    box.put("asked", reconcile=ASKED)
    message = box.doubt("asked")
    (first,) = box.inquire()
    box.move(61)
    box.look()
    (second,) = box.inquire()
    assert (second.id, second.fence) == (message.id, first.fence + 1)
    box.inquired(first, Reading(Verdict.DEAD, b"1"))
    assert box.state(message.id) is State.UNKNOWN
    box.inquired(second, Reading(Verdict.SENT, b"1"))
    assert box.state(message.id) is State.SENT


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (b'{"verdict": "sent"}', Verdict.SENT),
        (b' {"verdict": "retry", "evidence": {"a": 1.50}}\n', Verdict.RETRY),
        (b'{"verdict": "dead", "provider_operation_id": "x"}', Verdict.DEAD),
        (b'{"verdict": "retry", "evidence": 1e400}', None),
        (b'{"verdict": "undecided"}', None),
        (b'{"verdict": "SENT"}', None),
        (b'{"verdict": null}', None),
        (b'{"verdict": ["sent"]}', None),
        (b'"sent"', None),
        (b"sent", None),
        (b"[]", None),
        (b"", None),
        (b"\xff", None),
        (b'{"verdict":' * 400, None),
    ],
)
def test_only_a_clear_verdict_decides(body: bytes, verdict: Verdict | None) -> None:
    reading = read_reply(Reply(Fate.ANSWERED, status=200, body=body, body_complete=True), URL)
    assert (reading.verdict, reading.reached) == (verdict, True)


def test_only_a_whole_2xx_answer_is_read() -> None:
    body = b'{"verdict": "sent"}'
    for status in (302, 404, 500):
        assert read_reply(Reply(Fate.ANSWERED, status=status, body=body, body_complete=True), URL).verdict is None
    assert read_reply(Reply(Fate.ANSWERED, status=200, body=body, body_complete=False), URL).verdict is None
    assert read_reply(Reply(Fate.MAYBE_SENT, "reset", status=200, body=body), URL).verdict is None
    assert not read_reply(not_sent("connect"), URL + "?key=secret").reached
    assert b"secret" not in read_reply(not_sent("connect"), URL + "?key=secret").evidence


# -- races -----------------------------------------------------------------------------------------------------------------


@on_servers
def test_of_an_operator_and_a_reconciler_at_once_one_verdict_stands(box: Outbox, replica: Callable[[], Outbox]) -> None:
    other = replica()
    messages = [box.doubt(type_=f"t{number % 3}", order=f"o{number}") for number in range(ROUNDS)]
    grants = box.claim_doubts(limit=100)
    assert len(grants) == len(messages)

    def reconciling() -> list[Any]:
        return [box.find(grant, Verdict.DEAD) for grant in grants]

    def operating() -> list[Any]:
        try:
            return other.reconcile_all(
                *(OperatorVerdict(one.message.id, other.caller, Verdict.SENT, b"2") for one in grants)
            )
        finally:
            other.database.close()

    found, decided = together(reconciling, operating)
    for grant, one, two in zip(grants, found, decided, strict=True):
        assert isinstance(one, Refusal) is not isinstance(two, Refusal)
        assert box.state(grant.message.id) is (State.SENT if isinstance(one, Refusal) else State.DEAD)
    assert box.rows(outbox_reconciliations) == []
    assert len(box.rows(outbox_events, outbox_events.c.kind == "reconciled")) == len(grants)


@on_servers
def test_claims_of_two_replicas_share_nothing(box: Outbox, replica: Callable[[], Outbox]) -> None:
    other = replica()
    made = {box.doubt().id for _ in range(ROUNDS)}

    def claiming(process: Outbox) -> list[bytes]:
        got: list[bytes] = []
        idle = 0
        while idle < 3:
            grants = process.claim_doubts(limit=2)
            idle = 0 if grants else idle + 1
            got += [grant.message.id for grant in grants]
        return got

    def elsewhere() -> list[bytes]:
        try:
            return claiming(other)
        finally:
            other.database.close()

    one, two = together(lambda: claiming(box), elsewhere)
    assert sorted(one + two) == sorted(made)
    assert len(box.rows(outbox_messages, outbox_messages.c.state == State.UNKNOWN)) == ROUNDS


def test_nothing_is_found_out_about_a_message_that_is_not_there(box: Outbox) -> None:
    box.doubt()
    grant = take(box)
    good(box.find(grant, Verdict.SENT))
    box.purge_messages(State.SENT)
    outcome = box.find(grant, Verdict.SENT)
    assert isinstance(outcome, Refusal)
    assert outcome.code is NOT_FOUND
