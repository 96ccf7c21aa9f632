"""Recording and reading audit entries. Other primitives call `record` inside their own transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from app.db.tx import Tx
from app.primitives.audit import store
from app.primitives.audit.model import Entry, Filter

__all__ = ["Entry", "list_entries", "record"]


def record(tx: Tx, entries: Sequence[Entry]) -> None:
    """Write `entries` in the caller's transaction.

    Guarantee: they are committed with it, once, however often the unit of work runs.
    """
    if not entries:
        return
    store.insert_entries(
        tx,
        [
            {
                "id": entry.id,
                "at": tx.now,
                "actor": entry.by.key_id,
                "actor_name": entry.by.name,
                "action": entry.action,
                "kind": entry.kind,
                "target": entry.target[:300],
                "reason": entry.reason,
                "request_id": entry.request_id,
                "details": msgspec.json.encode(entry.details),
            }
            for entry in entries
        ],
    )


def list_entries(tx: Tx, wanted: Filter) -> Sequence[Any]:
    """At most one entry more than the limit, newest first."""
    return store.select_entries(tx, wanted)
