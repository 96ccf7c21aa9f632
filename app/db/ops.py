"""The verbs of the service itself: its key and its proof that the database takes writes."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from app.db import store
from app.db.tx import Tx
from app.reservations import SECRET_BYTES

SILENT_LIMIT = 100


def ensure_token_key(tx: Tx, commands: Sequence[None]) -> Sequence[bytes]:
    """Give the key under which this installation makes reservation tokens; make it at the very first start.

    Race: of processes that start together, one row wins, and all of them read that one.
    """
    key = store.select_token_key(tx)
    if key is None:
        store.insert_installation(tx, secrets.token_bytes(SECRET_BYTES))
        key = store.select_token_key(tx)
    if key is None:
        raise RuntimeError("the installation's row vanished while it was made")
    return [key] * len(commands)


def beat(tx: Tx, commands: Sequence[str]) -> Sequence[int]:
    """Write a beat for each named replica: the proof that the database takes writes. Gives the moment written."""
    for name in sorted(set(commands)):
        store.upsert_heartbeat(tx, name)
    return [tx.now] * len(commands)


def forget_silent(tx: Tx, commands: Sequence[int]) -> Sequence[int]:
    """Forget replicas that have been silent for so many microseconds, some at a time. Gives how many each command forgot."""
    outcomes = []
    for silent_micros in commands:
        before = tx.now - silent_micros
        names = store.select_silent_heartbeats(tx, before, SILENT_LIMIT)
        outcomes.append(sum(store.delete_heartbeat(tx, name, before) for name in names))
    return outcomes
