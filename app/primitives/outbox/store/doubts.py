"""SQL of reconciliations: what is unknown, and who is finding out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, insert, select

from app.db.tx import Tx
from app.primitives.outbox.store.values import IDS, Rows
from app.primitives.outbox.tables import outbox_reconciliations as doubts


def insert_doubts(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(doubts), list(rows))


def delete_doubts(tx: Tx, ids: Sequence[bytes]) -> None:
    """By primary key; those that are not there are nothing."""
    tx.conn.execute(delete(doubts).where(doubts.c.message_id.in_(IDS)), {"ids": list(ids)})


def select_doubts(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """Without a lock; by primary key."""
    return tx.conn.execute(select(doubts).where(doubts.c.message_id.in_(IDS)), {"ids": list(ids)}).all()
