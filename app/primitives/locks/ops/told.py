"""This process's memory of the locks, as ops reach it."""

from __future__ import annotations

from app.db.tx import Tx
from app.primitives.locks.here import Here


def here(tx: Tx) -> Here:
    memory: Here = tx.host.state("locks")
    return memory
