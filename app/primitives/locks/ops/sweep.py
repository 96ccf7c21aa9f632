"""Sweeps: what the service itself must do with locks in time. Each is one batch, safe on every replica at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.clock import micros
from app.db.held import SLACK_MICROS, raise_floor
from app.db.tx import Tx
from app.primitives.locks import store
from app.primitives.locks.model import State
from app.primitives.locks.ops.acquire import FLOOR
from app.primitives.locks.ops.told import here

BATCH = 200
FORGET_PROCESSES_AFTER = micros(3600)


@dataclass(frozen=True, slots=True)
class Batch:
    """One round of a sweep. Outcome: how many rows it changed; `most` of them means that there is more."""

    most: int = BATCH


def expire(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """held -> free, for locks whose leases have ended, and those who wait are told.

    Race: a renewal that commits first has moved the end; the write then matches nothing for that row.
    """
    rows = store.lock_due(tx, State.HELD, tx.now, commands[0].most)
    if rows:
        digests = [bytes(row.digest) for row in rows]
        ended = store.update_expired(tx, digests, tx.now + micros(tx.host.settings.locks_retention_seconds))
        memory = here(tx)
        tx.on_commit(lambda: memory.count({"expired": ended}))
        tx.on_commit(lambda: memory.wake(dict.fromkeys(digests, 1)))
    return [len(rows), *(0 for _ in commands[1:])]


def purge(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """Forget free locks whose retention is over, but not their fences, and what is left of those who waited."""
    most = commands[0].most
    gone = store.delete_old_waiters(tx, most)
    store.delete_old_processes(tx, tx.now - FORGET_PROCESSES_AFTER)
    rows = store.lock_due(tx, State.FREE, tx.now - SLACK_MICROS, most)
    if rows:
        raise_floor(tx, FLOOR, max(row.fence for row in rows))
        store.delete_locks(tx, [bytes(row.digest) for row in rows])
    return [max(gone, len(rows)), *(0 for _ in commands[1:])]
