"""Reading values, and what waiting callers look for. Takes no lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from app.clock import micros
from app.db.tx import Tx
from app.primitives.cache import store
from app.primitives.cache.model import Value
from app.primitives.cache.ops.locked import value_of
from app.primitives.cache.ops.told import here

USED_MICROS = micros(60)  # use is noted once in so long


def read(tx: Tx, digests: Sequence[bytes]) -> list[Value | None]:
    """The values that are there now; all by primary key in one query. Notes in memory that limited ones were used."""
    rows = {bytes(row.digest): row for row in store.select_values(tx, sorted(set(digests)))}
    values = {
        digest: None if row.value is None else value_of(row, bytes(row.value), tx.now) for digest, row in rows.items()
    }
    used = [
        digest
        for digest, row in rows.items()
        if row.used_at <= tx.now - USED_MICROS and (row.max_entries is not None or row.max_bytes is not None)
    ]
    memory, found = here(tx), [values.get(digest) for digest in digests]
    if used:
        memory.used(used)
    memory.count(Counter("miss" if value is None else value.found.value for value in found))
    return found


def peek(tx: Tx, digests: Sequence[bytes]) -> list[bytes]:
    """Those of these entries that nobody fills at this moment: they have a value, or want a filler."""
    busy = store.select_filling(tx, digests)
    return [digest for digest in digests if digest not in busy]
