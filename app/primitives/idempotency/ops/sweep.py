"""Sweeps: what the service itself must do with keys in time. Each is one batch, safe on every replica at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.db.held import SLACK_MICROS, raise_floor
from app.db.tx import Tx
from app.primitives.idempotency import store
from app.primitives.idempotency.model import State
from app.primitives.idempotency.ops.lapse import lapsed
from app.primitives.idempotency.ops.told import FLOOR

BATCH = 200


@dataclass(frozen=True, slots=True)
class Batch:
    """One round of a sweep. Outcome: how many rows it changed; `most` of them means that there is more."""

    most: int = BATCH


def abandon(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """running -> what each owner chose, for keys whose leases have ended.

    Race: a settlement or a heartbeat that commits first has changed the row; the write then matches nothing for it.
    """
    rows = store.lock_due(tx, State.RUNNING, tx.now, commands[0].most)
    if rows:
        lapsed(tx, rows)
    return [len(rows), *(0 for _ in commands[1:])]


def purge(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """Forget keys whose retention is over, but not their fences. `unknown` is never touched."""
    most, gone = commands[0].most, 0
    for state in (State.OPEN, State.COMPLETED, State.FAILED):
        rows = store.lock_due(tx, state, tx.now - SLACK_MICROS, most)
        if rows:
            raise_floor(tx, FLOOR, max(row.fence for row in rows))
            store.delete_keys(tx, [bytes(row.digest) for row in rows])
        gone = max(gone, len(rows))
    return [gone, *(0 for _ in commands[1:])]
