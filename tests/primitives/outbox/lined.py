"""What must hold of the tables of the outbox at every commit, whatever was done."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from app.primitives.outbox.model.states import State
from app.primitives.outbox.tables import (
    outbox_checks,
    outbox_contents,
    outbox_keys,
    outbox_lines,
    outbox_messages,
    outbox_places,
    outbox_reconciliations,
)
from tests.primitives.outbox.driving import Outbox

_OUT_OF_LINE = (State.SENT, State.DEAD, State.ABORTED)


def check(box: Outbox) -> None:
    """Lines, doubts, checks, contents and keys agree with the messages."""
    messages: dict[bytes, Any] = {bytes(row.id): row for row in box.rows(outbox_messages)}
    _check_lines(box, messages)
    unknown = {one for one, row in messages.items() if row.state == State.UNKNOWN}
    assert {bytes(row.message_id) for row in box.rows(outbox_reconciliations)} == unknown
    prepared = {one for one, row in messages.items() if row.state == State.PREPARED}
    assert {bytes(row.message_id) for row in box.rows(outbox_checks)} == prepared
    assert {bytes(row.message_id) for row in box.rows(outbox_contents)} == messages.keys()
    kept = {bytes(row.message_id): row for row in box.rows(outbox_keys)}
    assert messages.keys() <= kept.keys()
    assert all(kept[one].purge_at is not None for one in kept.keys() - messages.keys())


def _check_lines(box: Outbox, messages: dict[bytes, Any]) -> None:
    """Exactly one of those that wait in a line is not blocked; no other message is; no line is kept for nobody."""
    lines: dict[bytes, list[Any]] = defaultdict(list)
    places = box.rows(outbox_places)
    for place in places:
        row = messages[bytes(place.message_id)]
        assert row.ordered
        assert bool(place.waits) is (row.state not in _OUT_OF_LINE), (State(row.state), place.waits)
        if place.waits:
            lines[bytes(place.digest)].append(row)
    for rows in lines.values():
        assert sum(row.state != State.BLOCKED for row in rows) == 1, [State(row.state) for row in rows]
    blocked = {one for one, row in messages.items() if row.state == State.BLOCKED}
    assert blocked <= {bytes(row.id) for rows in lines.values() for row in rows}
    assert {bytes(row.digest) for row in box.rows(outbox_lines)} == {bytes(place.digest) for place in places}
