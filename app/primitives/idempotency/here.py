"""This process's memory of idempotency: whom to wake, and what has happened. Never the truth."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Here:
    """`wake(keys)` tells the desk of this process which keys are no longer in progress."""

    wake: Callable[[Mapping[bytes, int]], None]
    states: dict[str, int] | None = None  # keys by state, when last counted
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _counts: Counter[str] = field(default_factory=Counter)

    def count(self, amounts: Mapping[str, int]) -> None:
        """Add what has happened in committed transactions, by word."""
        with self._lock:
            self._counts.update(amounts)

    def counts(self) -> Counter[str]:
        with self._lock:
            return self._counts.copy()
