"""What operators and the service itself do with messages, on every engine: verdicts, requeue, release-stale, purge, reading."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.access import Caller, Principal
from app.errors import FORBIDDEN, NOT_FOUND, STATE_CONFLICT, VERDICT_CONFLICT, Refusal
from app.ids import new_id
from app.primitives.audit.tables import audit
from app.primitives.outbox.model.records import Filter, Reconcile
from app.primitives.outbox.model.states import State, Verdict
from app.primitives.outbox.ops import control, inspect
from app.primitives.outbox.ops.control import reconcile
from app.primitives.outbox.store import reading
from app.primitives.outbox.tables import outbox_contents, outbox_events, outbox_keys, outbox_messages
from tests.primitives.outbox.driving import Outbox, good, new_message, rejected, retried, sent, unknown
from tests.primitives.outbox.lined import check

LIMITED = Caller(Principal("k", "k", frozenset(), ("e*",)), "r")


def verdict(box: Outbox, message_id: bytes, word: Verdict, **fields: Any) -> Any:
    return box.reconcile_all(Reconcile(message_id, fields.pop("caller", box.caller), word, b'{"seen":1.0}', **fields))[
        0
    ]


def code(outcome: Any) -> Any:
    assert isinstance(outcome, Refusal)
    return outcome.code


# -- verdicts --------------------------------------------------------------------------------------------------------------


def test_the_first_verdict_stands_and_is_audited(box: Outbox) -> None:
    message = box.doubt()
    first = good(verdict(box, message.id, Verdict.SENT, reference="ch_1", reason="seen in the ledger"))
    assert (first.message.state, first.replayed, first.message.reference) == (State.SENT, False, "ch_1")
    assert good(verdict(box, message.id, Verdict.SENT)).replayed
    refused = verdict(box, message.id, Verdict.DEAD)
    assert (code(refused), refused.extra["verdict"]) == (VERDICT_CONFLICT, "sent")
    (entry,) = box.rows(audit, audit.c.action == "outbox.reconcile_message")
    assert (entry.actor, entry.reason) == (box.caller.principal.key_id, "seen in the ledger")
    (event,) = [one for one in box.events(message.id) if one.kind == "reconciled"]
    assert bytes(event.detail) == b'{"seen":1.0}'
    check(box)


def test_retry_sends_it_again_with_a_fresh_budget_and_a_new_doubt_takes_a_new_verdict(box: Outbox) -> None:
    message = box.record(max_attempts=1)
    for _ in range(3):
        grant = box.take()
        assert grant.attempt == 1
        box.settle(unknown(grant))
        good(verdict(box, message.id, Verdict.RETRY))
        assert good(verdict(box, message.id, Verdict.RETRY)).replayed
    box.settle(unknown(box.take()))
    good(verdict(box, message.id, Verdict.DEAD))
    assert code(verdict(box, message.id, Verdict.RETRY)) is VERDICT_CONFLICT


def test_only_what_is_unknown_takes_a_verdict(box: Outbox) -> None:
    pending = box.record()
    assert code(verdict(box, pending.id, Verdict.SENT)) is STATE_CONFLICT
    assert code(verdict(box, new_id(), Verdict.SENT)) is NOT_FOUND
    box.settle(rejected(box.take()))
    assert code(verdict(box, pending.id, Verdict.RETRY)) is STATE_CONFLICT
    doubtful = box.doubt()
    assert code(verdict(box, doubtful.id, Verdict.SENT, caller=LIMITED)) is FORBIDDEN


def test_two_verdicts_of_one_unit_and_one_whose_commit_was_in_doubt(box: Outbox) -> None:
    message = box.doubt()
    first, second = box.reconcile_all(
        Reconcile(message.id, box.caller, Verdict.DEAD, b"1"), Reconcile(message.id, box.caller, Verdict.SENT, b"1")
    )
    assert good(first).message.state is State.DEAD
    assert code(second) is VERDICT_CONFLICT
    other = box.doubt()
    before, after = box.repeat(reconcile, Reconcile(other.id, box.caller, Verdict.SENT, b"1"))
    assert [good(one).replayed for one in (*before, *after)] == [False, False]


# -- many ------------------------------------------------------------------------------------------------------------------


def test_requeue_takes_dead_ones_of_what_is_named_with_a_fresh_budget(box: Outbox) -> None:
    box.put("e")
    for name, type_ in (("d", "t"), ("d", "u"), ("e", "t"), ("d", "t")):
        box.record(name, type_, max_attempts=1)
        box.settle(retried(box.take(name)))
    box.record()
    box.settle(sent(box.take()))
    assert box.requeue(destination="d", type_="t", limit=1).changed == 1
    assert box.requeue(destination="d", type_="t").changed == 1
    assert box.requeue(type_="u").changed == 1
    assert box.requeue(destination="nowhere").changed == 0
    assert {box.take().attempt for _ in range(3)} == {1}
    box.caller = LIMITED
    assert box.requeue().changed == 1
    entries = box.rows(audit, audit.c.action == "outbox.requeue_messages")
    assert sorted(json.loads(entry.details)["changed"] for entry in entries) == [0, 1, 1, 1, 1]


def test_release_stale_gives_back_what_bears_a_repeat_and_doubts_the_rest(box: Outbox) -> None:
    box.put("e", idempotent=True)
    for name in ("d", "e"):
        box.record(name, order="o")
        box.record(name, order="o")
        box.take(name, lease=3600)
    box.move(100)
    fresh = box.record("e")
    box.take("e", lease=3600)
    assert box.release_stale(seconds=101).changed == 0
    changed = box.release_stale(seconds=99)
    assert (changed.changed, changed.unknown) == (2, 1)
    assert box.state(fresh.id) is State.SENDING
    check(box)
    (again,) = box.claim("e", limit=9)
    assert again.attempt == 1, "it has spent no attempt"
    assert box.claim("d") == ()


@pytest.mark.parametrize("state", [State.SENT, State.DEAD, State.ABORTED])
def test_purge_forgets_ended_ones_of_an_age_and_nothing_else(box: Outbox, state: State) -> None:
    for _ in range(2):
        box.record(key=None, order="o")
        box.settle(sent(box.take()))
        box.record()
        box.settle(rejected(box.take()))
        box.abort(box.prepare().id)
    old = [bytes(row.id) for row in box.rows(outbox_messages, outbox_messages.c.state == state)]
    box.doubt()
    box.record()
    box.move(100)
    assert box.purge_messages(state, seconds=101).changed == 0
    assert box.purge_messages(state, seconds=50, limit=1).changed == 1
    assert box.purge_messages(state, seconds=50).changed == 1
    assert not {bytes(row.id) for row in box.rows(outbox_messages)} & {*old}
    for table in (outbox_contents, outbox_events, outbox_keys):
        assert not {bytes(row.message_id) for row in box.rows(table)} & {*old}
    assert len(box.rows(outbox_messages)) == 6
    check(box)


def test_retention_is_that_of_the_destination_then_of_the_settings(box: Outbox) -> None:
    box.put("e", retention_seconds=10.0)
    box.host.set(outbox_retention_seconds=100.0)
    for name in ("d", "e"):
        box.record(name)
        box.settle(sent(box.take(name)))
    box.move(11)
    assert box.purge() == 1
    box.move(100)
    assert box.purge() == 1
    assert box.rows(outbox_messages) == box.rows(outbox_keys) == []


def test_what_has_a_time_is_promoted_when_it_comes_in_small_batches(box: Outbox) -> None:
    for _ in range(5):
        box.record(available_at=box.now + 10 * 10**6)
    assert box.promote() == 0
    box.move(11)
    assert [box.promote(most=2) for _ in range(4)] == [2, 2, 1, 0]
    assert len(box.claim(limit=9)) == 5


def test_one_always_failing_message_is_tried_by_its_backoff_however_many_ask(box: Outbox, replica: Any) -> None:
    """CAP#1797 (scenario 30): N replicas were N times the retries."""
    box.put("d", backoff_seconds=(60.0,), max_attempts=100)
    box.record()
    processes = [box, *([] if box.database.dialect.name == "sqlite" else [replica() for _ in range(3)])]
    tried = 0
    for second in range(0, 600, 20):
        for process in processes:
            process.promote()
            for grant in process.claim(limit=10):
                process.settle(retried(grant))
                tried += 1
        for process in processes:
            process.move(20)
        assert tried <= second // 60 + 1
    assert tried >= 7


# -- reading ---------------------------------------------------------------------------------------------------------------


def page(box: Outbox, limit: int = 50, after: bytes | None = None, caller: Caller | None = None, **wanted: Any) -> Any:
    principal = (caller or box.caller).principal
    listing = inspect.Listing(Filter(**wanted), principal, limit, after)
    return box.database.run(lambda tx, commands: [inspect.list_messages(tx, commands[0])], [listing])[0]


@pytest.mark.parametrize("few", [reading.FEW, 2])
def test_lists_are_newest_first_cut_into_pages_and_filtered(
    box: Outbox, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(reading, "FEW", few)
    monkeypatch.setattr(reading, "WINDOW", 3)
    box.put("e")
    made = [box.record("de"[number % 2], "tu"[number // 2 % 2]).id for number in range(12)]
    box.settle(rejected(box.take("d")))

    def walk(**wanted: Any) -> list[bytes]:
        found, after = [], None
        while True:
            one = page(box, limit=2, after=after, **wanted)
            found += [message.id for message in one.messages]
            if (after := one.after) is None:
                return found

    assert walk() == made[::-1]
    assert walk(destination="d") == made[::-1][1::2]
    assert walk(destination="d", type="t") == [made[number] for number in (8, 4, 0)]
    assert walk(state="dead") == [made[0]]
    assert walk(state="pending", destination="d") == made[::-1][1:-1:2]
    assert walk(destination="nowhere") == walk(state="sent") == []
    assert walk(caller=LIMITED) == made[::-1][::2]
    (key,) = [row.message_key for row in box.rows(outbox_contents, outbox_contents.c.message_id == made[3])]
    assert walk(message_key=bytes(key).decode()) == [made[3]]
    assert walk(message_key="no such key") == []


def test_a_history_tells_every_attempt_once(box: Outbox) -> None:
    box.put("d", backoff_seconds=(0.0,))
    message = box.record(key="k")
    box.settle(retried(box.take(worker="w1"), delay=0))
    box.settle(unknown(box.take(worker="w2"), reference="ch_1"))
    good(verdict(box, message.id, Verdict.RETRY))
    box.settle(sent(box.take(worker="w3"), "ch_2"))
    command = inspect.Get(message.id, box.caller.principal, payload=True)
    detail = box.database.run(lambda tx, commands: [inspect.get(tx, commands[0])], [command])[0]
    assert [(event.kind, event.worker) for event in detail.events] == [
        ("recorded", None),
        ("claimed", "w1"),
        ("retried", "w1"),
        ("claimed", "w2"),
        ("unknown", "w2"),
        ("reconciled", None),
        ("claimed", "w3"),
        ("sent", "w3"),
    ]
    dead = box.record()
    box.settle(rejected(box.take()))
    command = inspect.Get(dead.id, box.caller.principal)
    story = box.database.run(lambda tx, commands: [inspect.get(tx, commands[0])], [command])[0].events
    assert [event.kind for event in story] == ["recorded", "claimed", "rejected", "dead"]
    assert (detail.payload, detail.message.reference, detail.request_id) == (b"{}", "ch_2", box.caller.request_id)


def test_figures_are_one_grouped_query_and_agree_with_the_rows(box: Outbox) -> None:
    box.put("e")
    for _ in range(3):
        box.record(order="o")
    box.record("e")
    box.settle(sent(box.take("e")))
    box.doubt()
    box.prepare()
    box.write(destination="nowhere")
    box.adopt()
    box.move(7)
    seen = box.statements(lambda: _stats(box))
    assert sum("GROUP BY" in one and "outbox_messages" in one for one in seen) == 1
    stats = _stats(box)
    told = {one.destination: one for one in stats.destinations}
    counts = told["d"].counts
    assert {name: counts[name] for name in ("pending", "blocked", "unknown", "prepared", "sending", "sent")} == {
        "pending": 1, "blocked": 2, "unknown": 1, "prepared": 1, "sending": 0, "sent": 0,
    }  # fmt: skip
    assert told["e"].counts["sent"] == 1
    assert 6.9 < told["d"].oldest_pending_age_seconds < 60
    assert told["e"].oldest_pending_age_seconds is None
    assert stats.set_aside == 1


def _stats(box: Outbox) -> Any:
    def run(tx: Any, commands: Any) -> Any:
        return [inspect.stats(tx, commands[0])]

    return box.database.run(run, [box.caller.principal])[0]


def test_nothing_that_reads_locks_or_marks(box: Outbox) -> None:
    message = box.record()
    seen = box.statements(lambda: (page(box), _stats(box), page(box, state="pending")))
    assert not [one for one in seen if "FOR UPDATE" in one or one.startswith(("UPDATE", "INSERT", "DELETE"))]
    assert box.take().id == message.id


def test_the_same_key_of_two_units_at_one_moment_is_one_message(box: Outbox) -> None:
    first, second = box.record_all(new_message(key="k"), new_message(key="k"))
    assert (good(first).message.id, good(second).replayed) == (good(second).message.id, True)
    assert control.LEFT_BY[Verdict.RETRY] is State.PENDING
