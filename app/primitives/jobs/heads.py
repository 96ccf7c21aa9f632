"""Where the head of each flow was seen last, as a lower bound for the next look at it.

While somebody keeps an old snapshot open, a database cannot clear away the index entries of work that is done, and every
claim walks over them: 200 ms instead of one, measured. Beginning at the last known head avoids the walk. The bound is never
the truth: whatever this process makes available below it lowers it, what other replicas make available is found by the look
without a bound that follows every second, and one that brings too little is repeated without it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.clock import MICROS, steady_micros

Place = tuple[int, int]  # priority, available_at
LOWEST: Place = (-32768, 0)
TRUSTED_MICROS = MICROS


@dataclass(slots=True)
class Heads:
    """Bounds by flow id. Touched by database threads, so each change is one step under the lock."""

    _bounds: dict[int, tuple[Place, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def bound(self, flow_id: int) -> Place:
        """Where to begin; LOWEST if nothing is known, or if it is time to look at everything again."""
        known = self._bounds.get(flow_id)
        return known[0] if known is not None and steady_micros() - known[1] < TRUSTED_MICROS else LOWEST

    def seen(self, heads: Mapping[int, Place], bounded: Mapping[int, Place]) -> None:
        """A committed claim took work from here on. `bounded`: where its look began; one that began at LOWEST renews trust."""
        with self._lock:
            for flow_id, place in heads.items():
                known = self._bounds.get(flow_id)
                if bounded.get(flow_id, LOWEST) == LOWEST:
                    self._bounds[flow_id] = (place, steady_micros())
                elif known is not None:
                    self._bounds[flow_id] = (place, known[1])

    def lower(self, flow_id: int, place: Place) -> None:
        """Work has become available here."""
        with self._lock:
            known = self._bounds.get(flow_id)
            if known is not None and place < known[0]:
                self._bounds[flow_id] = (place, known[1])

    def forget(self, flow_id: int) -> None:
        """The bound hid work, or there is none left."""
        with self._lock:
            self._bounds.pop(flow_id, None)
