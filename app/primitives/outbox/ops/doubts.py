"""Doubts: a message became unknown, and somebody must find out; or a verdict has ended that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from app.db.tx import Tx
from app.primitives.outbox.model.states import Doubt
from app.primitives.outbox.ops import flows
from app.primitives.outbox.store import doubts as store


def open_(tx: Tx, rows: Sequence[Any]) -> None:
    """These messages, whose rows are locked and were in a holder's hands, are unknown now."""
    if rows:
        store.insert_doubts(
            tx,
            [
                {"message_id": row.id, "flow_id": row.flow_id, "state": int(Doubt.OPEN), "opened_at": tx.now}
                for row in rows
            ],
        )
        memory, names = flows.here(tx), flows.Names(tx)
        opened = Counter(names[row.flow_id] for row in rows)
        tx.on_commit(lambda: memory.doubted(opened))


def close(tx: Tx, ids: Sequence[bytes]) -> None:
    """These messages, whose rows are locked, have left `unknown`: whoever is finding out holds nothing any more."""
    if ids:
        store.delete_doubts(tx, sorted(ids))
