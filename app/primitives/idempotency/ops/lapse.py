"""What becomes of keys whose owners are lost: what the owners chose when they came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.db.tx import Tx
from app.primitives.idempotency import store
from app.primitives.idempotency.model import OWNER_LOST, OnOwnerLost, State
from app.primitives.idempotency.ops.told import tell

_BECOMES = {OnOwnerLost.RECONCILE: State.UNKNOWN, OnOwnerLost.REOPEN: State.OPEN, OnOwnerLost.FAIL: State.FAILED}


def lapsed(tx: Tx, rows: Sequence[Any]) -> None:
    """running -> unknown, open or failed, for keys whose rows are locked and whose leases have ended."""
    store.update_lapsed(tx, [_move(tx, row) for row in rows])
    tell(tx, [bytes(row.digest) for row in rows], {"owner_lost": len(rows)})


def _move(tx: Tx, row: Any) -> dict[str, Any]:
    state = _BECOMES[OnOwnerLost.of(row.on_owner_lost)]
    return {
        "b_digest": bytes(row.digest),
        "b_state": int(state),
        "b_due_at": None if state is State.UNKNOWN else tx.now + row.retention_micros,
        "b_category": None if state is State.OPEN else OWNER_LOST,
        "b_ended_at": None if state is State.OPEN else tx.now,
    }
