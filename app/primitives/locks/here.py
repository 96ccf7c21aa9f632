"""This process's memory of its waiting callers. Never the truth, always rebuildable.

Ops reach it as `tx.host.state("locks")`. It is touched by database threads, so every change is one step under the lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from app.ids import new_id


@dataclass(slots=True)
class Here:
    """`wake(names)` tells the desk of this process which locks may be taken. `process`: as whose callers' they wait."""

    wake: Callable[[Mapping[bytes, int]], None]
    process: bytes = field(default_factory=new_id)
    alive_until: int = 0  # by which moment others have last been told that this process lives
    held: int | None = None  # locks that were held when last counted
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _standing: dict[bytes, int] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def stands(self, place: bytes, number: int) -> bool:
        """Whether this very call has its place in its line."""
        return self._standing.get(place) == number

    def stood(self, calls: Mapping[bytes, int]) -> None:
        """These calls (place -> number) have their places; it is committed."""
        with self._lock:
            self._standing.update(calls)

    def left(self, calls: Mapping[bytes, int]) -> None:
        """These calls wait no longer. A later call of the same claim keeps the place."""
        with self._lock:
            for place, number in calls.items():
                if self._standing.get(place) == number:
                    del self._standing[place]

    @property
    def waiting(self) -> bool:
        return bool(self._standing)

    def count(self, amounts: Mapping[str, int]) -> None:
        """Add what has happened in committed transactions, by word."""
        with self._lock:
            self._counts.update(amounts)

    def counts(self) -> Counter[str]:
        with self._lock:
            return self._counts.copy()
