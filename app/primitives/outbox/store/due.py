"""SQL of the sweeps: what is due, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, literal, select, update

from app.db.tx import Tx
from app.primitives.outbox.model.states import State
from app.primitives.outbox.store.values import HOT, IDS, Rows
from app.primitives.outbox.store.work import delete_claims
from app.primitives.outbox.tables import DUE_INDEX, outbox_claims, outbox_keys
from app.primitives.outbox.tables import outbox_messages as messages


def lock_due(tx: Tx, state: State, most: int) -> Rows:
    """Messages in `state` that are due, the longest due first, that nobody else holds; by the due index."""
    query = (
        select(*HOT)
        .where(messages.c.state == int(state), messages.c.due_at <= tx.now)
        .order_by(messages.c.due_at, messages.c.id)
        .limit(most)
    )
    return tx.conn.execute(tx.dialect.lock_free(tx.dialect.force_index(query, messages, DUE_INDEX))).all()


def any_due(tx: Tx, state: State) -> bool:
    """One look at the due index."""
    query = select(literal(1)).where(messages.c.state == int(state), messages.c.due_at <= tx.now).limit(1)
    return tx.conn.execute(tx.dialect.force_index(query, messages, DUE_INDEX)).first() is not None


def update_promoted(tx: Tx, ids: Sequence[bytes]) -> int:
    """delayed -> pending, where due."""
    change = (
        update(messages)
        .where(messages.c.id.in_(IDS), messages.c.state == State.DELAYED, messages.c.due_at <= tx.now)
        .values(state=State.PENDING, due_at=None)
    )
    return tx.conn.execute(change, {"ids": list(ids)}).rowcount


def delete_old_claims(tx: Tx, most: int) -> int:
    """Claim ids whose grants can no longer be held."""
    old = (
        select(outbox_claims.c.digest)
        .where(outbox_claims.c.purge_at <= tx.now)
        .order_by(outbox_claims.c.purge_at)
        .limit(most)
    )
    digests = [row.digest for row in tx.conn.execute(tx.dialect.lock_free(old))]
    if digests:
        delete_claims(tx, digests)
    return len(digests)


def delete_old_keys(tx: Tx, most: int) -> int:
    """Keys of messages that were deleted as they were sent, whose time is over."""
    old = (
        select(outbox_keys.c.digest)
        .where(outbox_keys.c.purge_at <= tx.now)
        .order_by(outbox_keys.c.purge_at)
        .limit(most)
    )
    digests = [row.digest for row in tx.conn.execute(tx.dialect.lock_free(old))]
    if digests:
        tx.conn.execute(delete(outbox_keys).where(outbox_keys.c.digest.in_(digests)))
    return len(digests)
