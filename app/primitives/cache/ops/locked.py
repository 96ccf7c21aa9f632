"""The rows that one unit of work writes to: namespaces first, then entries. Every verb that writes begins with `lock`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.clock import micros
from app.db.tx import Tx
from app.holding import End
from app.primitives.cache import store
from app.primitives.cache.model import Found, Place, Value

# for how long a row outlives what it was for, so that a late filler is told why it comes too late
KEPT_MICROS = micros(60)
MOST_EVICTED = 500  # by one unit of work; what is still too much goes with the next, or a sweep


@dataclass(slots=True)
class Book:
    """What a namespace that is locked holds, as this unit of work leaves it."""

    row: Any
    fence: int
    entries: int
    bytes: int
    changed: bool = False

    def next_fence(self) -> int:
        self.fence += 1
        self.changed = True
        return self.fence

    def count(self, entries: int, size: int) -> None:
        self.entries += entries
        self.bytes += size
        self.changed = True

    @property
    def too_full(self) -> bool:
        most_entries, most_bytes = self.row.max_entries, self.row.max_bytes
        return (most_entries is not None and self.entries > most_entries) or (
            most_bytes is not None and self.bytes > most_bytes
        )


@dataclass(slots=True)
class Locked:
    """Rows of entries by digest, and books of namespaces by name. What was cleared away before holds no value and no fill."""

    tx: Tx
    rows: dict[bytes, Any]
    books: dict[str, Book] = field(default_factory=dict)

    def state(self, place: Place) -> Found | None:
        """Whether there is a value, fresh or stale."""
        row = self.rows.get(place.digest)
        return state_of(row, self.tx.now) if row is not None and row.holds else None

    def fills(self, place: Place) -> bool:
        """Whether somebody fills this entry."""
        row = self.rows.get(place.digest)
        return row is not None and _held(row)

    def replace(self, place: Place, size: int | None) -> None:
        """Count that the entry comes to hold a value of this size in place of what it has held; None: no value."""
        row = self.rows.get(place.digest)
        held = row.size if row is not None and row.holds else None
        book = self.books[place.namespace]
        book.count((size is not None) - (held is not None), (size or 0) - (held or 0))

    def save(self) -> int:
        """Make room where there is too much, and write the books down. Last of all. Gives how many values were evicted."""
        evicted = 0
        for name, book in self.books.items():
            if book.too_full:
                evicted += self._make_room(name, book)
            if book.changed:
                counted = {"fence": book.fence, "entries": book.entries, "bytes": book.bytes}
                store.update_namespace(self.tx, name, counted)
        return evicted

    def _make_room(self, name: str, book: Book) -> int:
        evicted: list[bytes] = []
        busy: list[bytes] = []
        for row in store.select_least_used(self.tx, name, book.row.generation, MOST_EVICTED):
            if not book.too_full:
                break
            book.count(-1, -row.size)
            (busy if _held(row) else evicted).append(bytes(row.digest))
        if evicted:
            store.delete_entries(self.tx, evicted)
        if busy:
            store.update_gone(self.tx, busy, self.tx.now + KEPT_MICROS)
        memory, number = self.tx.host.state("cache"), len(evicted) + len(busy)
        self.tx.on_commit(lambda: memory.count({"evicted": number}))
        return number


def lock(tx: Tx, places: Sequence[Place]) -> Locked:
    """Lock what stands at these places. What was left from before a clear is emptied first, and fillings whose leases have
    ended, by the database's own clock, are ended.
    """
    locked = lock_books(tx, [place.namespace for place in places])
    digests = [place.digest for place in places]
    rows = store.lock_entries(tx, digests)
    hidden = [
        digest
        for digest, row in rows.items()
        if row.generation != locked.books[row.namespace].row.generation and (row.holds or row.fill_until is not None)
    ]
    lapsed = [digest for digest, row in rows.items() if _held(row) and row.fill_until <= tx.now]
    if hidden:
        store.update_cancelled(tx, hidden)
        store.update_gone(tx, hidden, tx.now + KEPT_MICROS)
    if lapsed:
        store.update_lapsed(tx, lapsed)
    if hidden or lapsed:
        rows = store.lock_entries(tx, digests)
    locked.rows = rows
    return locked


def lock_books(tx: Tx, names: Sequence[str]) -> Locked:
    """Lock namespaces alone."""
    rows = store.lock_namespaces(tx, names)
    return Locked(tx, {}, {name: Book(row, row.fence, row.entries, row.bytes) for name, row in rows.items()})


def _held(row: Any) -> bool:
    """Somebody fills this entry, whose row is locked."""
    return bool(row.fill_until is not None and row.ended == End.HELD)


def state_of(row: Any, now: int) -> Found | None:
    """Of the value of a row of the generation that counts: None if its time is over."""
    if row.stale_until <= now:
        return None
    return Found.FRESH if row.fresh_until > now else Found.STALE


def value_of(row: Any, value: bytes, now: int) -> Value | None:
    """The same, with the value itself."""
    found = state_of(row, now)
    if found is None:
        return None
    filling = _held(row) and row.fill_until > now
    return Value(found, value, row.version, row.stored_at, row.fresh_until, row.stale_until, now, filling)
