"""This process's memory of the cache: whom to wake, what was used, and what has happened. Never the truth."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

MOST_USED = 10_000  # entries whose use is remembered until the next sweep notes it; more are forgotten


@dataclass(slots=True)
class Here:
    """`wake(entries)` tells the desk of this process which entries have a value, or want a filler."""

    wake: Callable[[Mapping[bytes, int]], None]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _used: dict[bytes, None] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def used(self, digests: Iterable[bytes]) -> None:
        """These entries were used; their namespaces have limits."""
        with self._lock:
            if len(self._used) < MOST_USED:
                self._used.update(dict.fromkeys(digests))

    def take_used(self, most: int) -> list[bytes]:
        """Entries that were used since they were last taken here."""
        with self._lock:
            taken = [digest for digest, _ in zip(self._used, range(most), strict=False)]
            for digest in taken:
                del self._used[digest]
            return taken

    def count(self, amounts: Mapping[str, int]) -> None:
        """Add what has happened in committed transactions, by word."""
        with self._lock:
            self._counts.update(amounts)

    def counts(self) -> Counter[str]:
        with self._lock:
            return self._counts.copy()
