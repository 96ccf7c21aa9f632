"""Sweeps: what the service itself must do with the cache in time. Each is one batch, safe on every replica at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.db.tx import Tx
from app.primitives.cache import store
from app.primitives.cache.model import Place
from app.primitives.cache.ops.locked import lock, lock_books

BATCH = 200


@dataclass(frozen=True, slots=True)
class Batch:
    """One round of a sweep. Outcome: how many rows it changed; `most` of them means that there is more."""

    most: int = BATCH


def purge(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """Delete rows of which nothing counts any more. Race: they are locked, and looked at again, before they go."""
    due = store.select_due(tx, commands[0].most)
    if due:
        locked = lock(tx, [Place(namespace, "", digest) for namespace, digest in due])
        over = [Place(row.namespace, "", digest) for digest, row in locked.rows.items() if row.due_at <= tx.now]
        for place in over:
            locked.replace(place, None)
        if over:
            store.delete_entries(tx, [place.digest for place in over])
        locked.save()
    return [len(due), *(0 for _ in commands[1:])]


def sweep_cleared(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """Delete the rows that namespaces held before they were cleared, a batch at a time."""
    most, gone = commands[0].most, 0
    for name, _ in store.select_unswept(tx):
        row = store.lock_namespaces(tx, [name])[name]
        hidden = store.select_hidden(tx, name, row.generation, most - gone)
        if hidden:
            store.delete_entries(tx, hidden)
        gone += len(hidden)
        if gone >= most:
            break
        store.update_namespace(tx, name, {"swept": row.generation})
    return [gone, *(0 for _ in commands[1:])]


def make_room(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """Evict what is too much where a limit came to be lower than what there is. Outcome: how many values went."""
    names = store.select_too_full(tx, commands[0].most)
    evicted = lock_books(tx, names).save() if names else 0
    return [evicted, *(0 for _ in commands[1:])]


def note_used(tx: Tx, commands: Sequence[Sequence[bytes]]) -> list[int]:
    """Write down that these entries were used, so that others are evicted before them. Those that are locked are left out."""
    return [store.update_used(tx, digests) if digests else 0 for digests in commands]
