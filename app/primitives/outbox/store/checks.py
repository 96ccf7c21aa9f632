"""SQL of prepared messages: what is asked about them, and how they were decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, select, update

from app.db.tx import Tx
from app.primitives.outbox.model.states import Check, Decision, State
from app.primitives.outbox.store.values import IDS, Rows
from app.primitives.outbox.tables import outbox_checks as checks
from app.primitives.outbox.tables import outbox_events as events
from app.primitives.outbox.tables import outbox_messages as messages


def insert_checks(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(checks), list(rows))


def select_checks(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """Without a lock: whoever changes one holds its message's row. By primary key."""
    return tx.conn.execute(select(checks).where(checks.c.message_id.in_(IDS)), {"ids": list(ids)}).all()


def update_asked(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """What asking has brought (`b_message_id`, `b_state`, `b_asked`, `b_failures`, `b_answer`, `b_answered_at`)."""
    names = ("state", "asked", "failures", "answer", "answered_at")
    change = (
        update(checks)
        .where(checks.c.message_id == bindparam("b_message_id"))
        .values({name: bindparam(f"b_{name}", type_=checks.c[name].type) for name in names})
    )
    tx.conn.execute(change, list(rows))


def update_looks(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> int:
    """When these messages are looked at again (`b_id`, `b_due_at`), if they are still prepared."""
    change = (
        update(messages)
        .where(messages.c.id == bindparam("b_id"), messages.c.state == State.PREPARED)
        .values(due_at=bindparam("b_due_at", type_=messages.c.due_at.type))
    )
    return tx.conn.execute(change, list(rows)).rowcount


def update_ordered(tx: Tx, ids: Sequence[bytes]) -> None:
    """These messages have a place in a line from now on."""
    tx.conn.execute(update(messages).where(messages.c.id.in_(IDS)).values(ordered=1), {"ids": list(ids)})


def delete_checks(tx: Tx, ids: Sequence[bytes]) -> None:
    tx.conn.execute(delete(checks).where(checks.c.message_id.in_(IDS)), {"ids": list(ids)})


def select_decisions(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """(message_id, kind) of what was decided about these messages; by primary key."""
    query = select(events.c.message_id, events.c.kind).where(
        events.c.message_id.in_(IDS), events.c.kind.in_([decision.value for decision in Decision])
    )
    return tx.conn.execute(query, {"ids": list(ids)}).all()


def count_needing_operator(tx: Tx) -> Rows:
    """(flow_id, amount) of prepared messages that wait for an operator; by the index over states."""
    query = select(checks.c.flow_id, func.count().label("amount")).where(checks.c.state == int(Check.OPERATOR))
    return tx.conn.execute(query.group_by(checks.c.flow_id)).all()
