"""SQL of what operators do: which messages an action is for, and the verdicts given. Rows are locked before they change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select

from app.db.tx import Tx
from app.primitives.outbox.model.states import Kind, State
from app.primitives.outbox.store.values import HOT, Rows
from app.primitives.outbox.tables import CLAIM_INDEX, DUE_INDEX, outbox_events
from app.primitives.outbox.tables import outbox_messages as messages


def lock_in_flows(tx: Tx, flow_ids: Sequence[int], state: State, most: int) -> Rows:
    """Messages of these flows in this state that nobody else holds; by the claim index."""
    query = select(*HOT).where(messages.c.flow_id.in_(list(flow_ids)), messages.c.state == int(state)).limit(most)
    return tx.conn.execute(tx.dialect.lock_free(tx.dialect.force_index(query, messages, CLAIM_INDEX))).all()


def lock_claimed_before(tx: Tx, flow_ids: Sequence[int], moment: int, most: int) -> Rows:
    """Messages of these flows that were claimed before this moment and are still held; by the claim index."""
    query = (
        select(*HOT)
        .where(
            messages.c.flow_id.in_(list(flow_ids)), messages.c.state == State.SENDING, messages.c.claimed_at <= moment
        )
        .limit(most)
    )
    return tx.conn.execute(tx.dialect.lock_free(tx.dialect.force_index(query, messages, CLAIM_INDEX))).all()


def lock_ended_before(tx: Tx, flow_ids: Sequence[int], state: State, moment: int, most: int) -> Rows:
    """Messages of these flows that came to this state before this moment, the first to be forgotten first; by the due index."""
    query = (
        select(*HOT)
        .where(messages.c.flow_id.in_(list(flow_ids)), messages.c.state == int(state), messages.c.ended_at <= moment)
        .order_by(messages.c.due_at, messages.c.id)
        .limit(most)
    )
    return tx.conn.execute(tx.dialect.lock_free(tx.dialect.force_index(query, messages, DUE_INDEX))).all()


def select_newest_verdict(tx: Tx, message_id: bytes) -> Row[Any] | None:
    """The newest verdict on this message; by the events' primary key."""
    query = (
        select(outbox_events)
        .where(outbox_events.c.message_id == message_id, outbox_events.c.kind == Kind.RECONCILED.value)
        .order_by(outbox_events.c.id.desc())
        .limit(1)
    )
    return tx.conn.execute(query).first()
