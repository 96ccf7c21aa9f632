"""This process's memory of the cache, as ops reach it, and the words that several verbs share."""

from __future__ import annotations

from collections.abc import Mapping

from app.db.tx import Tx
from app.primitives.cache.here import Here

EVERYBODY = 1000  # who waits for a value gets it, all at once


def here(tx: Tx) -> Here:
    memory: Here = tx.host.state("cache")
    return memory


def tell(tx: Tx, woken: Mapping[bytes, int], happened: Mapping[str, int]) -> None:
    """Once this is committed: call up so many of those who wait for these entries, and count."""
    memory, called, counted = here(tx), dict(woken), dict(happened)
    tx.on_commit(lambda: memory.wake(called))
    tx.on_commit(lambda: memory.count(counted))
