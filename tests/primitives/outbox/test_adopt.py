"""What producers write with plain SQL, on every engine: it becomes messages, or it is set aside, and never stops the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from app.clock import micros
from app.primitives.outbox.model.states import State
from app.primitives.outbox.tables import outbox, outbox_messages
from tests.primitives.jobs.test_races import together
from tests.primitives.outbox.driving import Outbox, good, new_message, sent

FOUR = "INSERT INTO tenure_outbox (message_key, type, destination, payload) VALUES (:k, :t, :d, :p)"


def keys(box: Outbox) -> list[str]:
    """Message keys of what can be claimed, in the order of the claims."""
    found = []
    while grants := box.claim(limit=100):
        found += [grant.message_key for grant in grants]
    return found


def reasons(box: Outbox) -> list[str]:
    return [row.reason for row in sorted(box.rows(outbox), key=lambda row: row.id)]


def test_four_columns_are_enough_and_everything_else_has_its_default(box: Outbox, migrated_url: str) -> None:
    engine = create_engine(migrated_url)
    try:
        with engine.begin() as conn:
            conn.execute(text(FOUR), {"k": "order-1", "t": "order.paid", "d": "d", "p": '{"n": 1.50, "ü": "😀"}'})
            if box.database.dialect.name != "sqlite":  # where nobody else can write meanwhile
                assert box.adopt() == 0, "it is not committed"
        assert box.adopt() == 1
    finally:
        engine.dispose()
    grant = box.take()
    assert (grant.message_key, grant.flow, grant.schema_version) == ("order-1", ("d", "order.paid"), 1)
    assert grant.payload == '{"n": 1.50, "ü": "😀"}'.encode()
    assert abs(grant.occurred_at - box.now) < micros(60)
    assert (grant.ordering_key, grant.correlation_id, grant.target_reference) == (None, None, None)
    assert box.rows(outbox) == []


def test_what_a_producer_rolls_back_was_never_there(box: Outbox, migrated_url: str) -> None:
    engine = create_engine(migrated_url)
    try:
        with engine.connect() as conn:
            conn.execute(text(FOUR), {"k": "a", "t": "t", "d": "d", "p": "1"})
            conn.rollback()
    finally:
        engine.dispose()
    assert box.adopt() == 0
    assert box.claim() == ()


def test_every_column_is_taken_over(box: Outbox) -> None:
    later = box.now + micros(3600)
    box.write(
        message_key="k", type="t", schema_version=7, occurred_at=later - 1, available_at=later, ordering_key="a b",
        correlation_id="c", target_reference="r", max_attempts=2, payload=" [1] \n",
    )  # fmt: skip
    box.adopt()
    assert box.claim() == ()
    box.move(3601)
    box.promote()
    grant = box.take()
    assert (grant.schema_version, grant.occurred_at, grant.max_attempts) == (7, later - 1, 2)
    assert (grant.ordering_key, grant.correlation_id, grant.target_reference) == ("a b", "c", "r")
    assert grant.payload == b"[1]"


def test_the_same_intent_by_sql_and_over_http_is_one_message(box: Outbox) -> None:
    first = box.record(key="k")
    box.write(message_key="k")
    box.write(message_key="k")
    assert box.adopt() == 2
    assert [row.id for row in box.rows(outbox_messages)] == [first.id]
    assert box.rows(outbox) == []
    box.write(message_key="j")
    box.adopt()
    (again,) = box.record_all(new_message(key="j"))
    assert good(again).replayed


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"payload": "{"}, "payload"),
    ({"payload": ""}, "payload"),
    ({"payload": "{'a': 1}"}, "payload"),
    ({"payload": '{"a": NaN}'}, "payload"),
    ({"payload": '"\\ud800"'}, "payload"),
    ({"payload": "[" * 300 + "]" * 300}, "payload"),
    ({"payload": '"' + "x" * (256 * 1024) + '"'}, "payload must have at most"),
    ({"destination": "nowhere"}, "destination must be one that was set"),
    ({"destination": "D"}, "destination must be one that was set"),
    ({"destination": "d "}, "destination must be a name"),
    ({"type": ""}, "type"),
    ({"type": "a/b"}, "type"),
    ({"type": "x" * 129}, "type"),
    ({"message_key": ""}, "message_key"),
    ({"message_key": "k" * 256}, "message_key"),
    ({"message_key": "é" * 128}, "message_key"),
    ({"ordering_key": ""}, "ordering_key"),
    ({"ordering_key": "😀" * 64}, "ordering_key"),
    ({"schema_version": 0}, "schema_version"),
    ({"schema_version": 2**31}, "schema_version"),
    ({"max_attempts": 0}, "max_attempts"),
    ({"max_attempts": 1001}, "max_attempts"),
    ({"occurred_at": 1_700_000_000}, "occurred_at"),
    ({"occurred_at": 1_700_000_000_000}, "occurred_at"),
    ({"available_at": -1}, "available_at"),
    ({"available_at": 2**63 - 1}, "available_at"),
    ({"correlation_id": "a\nb"}, "correlation_id"),
    ({"target_reference": "x" * 256}, "target_reference"),
]


def test_what_is_written_wrongly_is_set_aside_with_its_reason_and_stops_nobody(box: Outbox) -> None:
    for number, (columns, _) in enumerate(WRONG):
        box.write(message_key=f"good-{number}")
        box.write(**columns)
    box.write(message_key="good-0", payload="[]")
    while box.adopt():
        pass
    told = reasons(box)
    assert len(told) == len(WRONG) + 1
    for (columns, expected), reason in zip(WRONG, told, strict=False):
        assert reason.startswith(expected), (columns, reason)
        written = next(iter(columns.values()))
        assert not isinstance(written, str) or len(written) < 12 or written not in reason
    assert "key" in told[-1], "another content under a used key"
    assert keys(box) == [f"good-{number}" for number in range(len(WRONG))]
    assert box.adopt() == 0, "what is set aside is looked at no more"


def test_a_row_that_was_set_aside_can_be_mended_and_is_then_taken(box: Outbox) -> None:
    row_id = box.write(destination="e", message_key="k")
    box.adopt()
    box.put("e")
    box.update(outbox, outbox.c.id == row_id, state="pending")
    assert box.adopt() == 1
    assert box.take("e").message_key == "k"


@pytest.mark.parametrize("key", ["a", "A", "a ", "é", "😀", "ß", "' OR 1=1 --", "\t"])
def test_keys_are_the_same_only_if_their_bytes_are(box: Outbox, key: str) -> None:
    for one in (key, "a", "A", "a ", "é", "e\u0301"):
        box.write(message_key=one, ordering_key=one)
    while box.adopt():
        pass
    expected = {key, "a", "A", "a ", "é", "e\u0301"}
    assert {grant.message_key for grant in box.claim(limit=100)} == expected
    assert reasons(box) == []


def test_an_ordering_key_orders_by_the_producers_rows_and_with_those_of_http(box: Outbox) -> None:
    box.record(key="0", order="o")
    for number in range(1, 6):
        box.write(message_key=str(number), ordering_key="o")
    box.adopt(most=2)
    box.adopt()
    order = []
    while grants := box.claim(limit=10):
        (grant,) = grants
        order.append(grant.message_key)
        box.settle(sent(grant))
    assert order == list("012345")


def test_an_empty_claim_takes_over_what_was_written(box: Outbox) -> None:
    box.write(message_key="k")
    assert box.take().message_key == "k"


def test_replicas_that_adopt_at_once_lose_and_double_nothing(box: Outbox, replica: Callable[[], Outbox]) -> None:
    rows = 200
    for number in range(rows):
        box.write(message_key=f"k{number % 150}", ordering_key=f"o{number % 3}" if number % 2 else None)
    processes = [box] if box.database.dialect.name == "sqlite" else [box, replica(), replica()]

    def adopting(process: Outbox) -> Callable[[], None]:
        def act() -> None:
            while process.adopt(most=7):
                pass

        return act

    together(*(adopting(process) for process in processes))
    while box.adopt():  # what another had locked when the last look was made
        pass
    assert len(box.rows(outbox_messages)) == 150
    assert {row.reason for row in box.rows(outbox)} <= {"message_key belongs to a message with other content"}
    waiting = [row for row in box.rows(outbox_messages) if row.state != State.BLOCKED and row.ordered]
    assert len(waiting) == 3, "one of each line"
