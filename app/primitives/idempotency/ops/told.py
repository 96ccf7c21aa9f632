"""This process's memory of idempotency, as ops reach it, and the words that several verbs share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.db.tx import Tx
from app.primitives.idempotency.here import Here

FLOOR = "idempotency"
EVERYBODY = 1000  # who waits for a key is told of its outcome, all at once


def here(tx: Tx) -> Here:
    memory: Here = tx.host.state("idempotency")
    return memory


def tell(tx: Tx, digests: Iterable[bytes], happened: Mapping[str, int]) -> None:
    """Once this is committed: wake those who wait for these keys, and count."""
    memory, woken, counted = here(tx), dict.fromkeys(digests, EVERYBODY), dict(happened)
    tx.on_commit(lambda: memory.wake(woken))
    tx.on_commit(lambda: memory.count(counted))
