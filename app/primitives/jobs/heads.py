"""Where the head of each flow was seen last, as a lower bound for the next look at it.

While somebody keeps an old snapshot open, a database cannot clear away the index entries of work that is done, and every
claim walks over them: 200 ms instead of one, measured. Beginning at the last known head avoids the walk. The bound is never
the truth: whatever this process makes available below it lowers it, what other replicas make available is found by the look
without a bound that follows every second, and one that brings too little is repeated without it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.clock import MICROS, steady_micros

Place = tuple[int, int]  # priority, available_at
LOWEST: Place = (-32768, 0)
TRUSTED_MICROS = MICROS


@dataclass(eq=False, slots=True)
class Look:
    """One claim's look at some flows, from `bounds` on. `lowest`: where work became available meanwhile, by flow."""

    bounds: dict[int, Place]
    began: int
    lowest: dict[int, Place] = field(default_factory=dict)


@dataclass(slots=True)
class Heads:
    """Bounds by flow id. Touched by database threads, so each change is one step under the lock."""

    _bounds: dict[int, tuple[Place, int]] = field(default_factory=dict)
    _looks: list[Look] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def bound(self, flow_id: int) -> Place:
        """Where to begin; LOWEST if nothing is known, or if it is time to look at everything again."""
        known = self._bounds.get(flow_id)
        return known[0] if known is not None and steady_micros() - known[1] < TRUSTED_MICROS else LOWEST

    def look(self, flow_ids: Iterable[int]) -> Look:
        """Begin a look at these flows, which ends with `seen` or `over`; one that does not (its unit was rolled back) is
        forgotten after the time of trust.
        """
        now = steady_micros()
        with self._lock:
            look = Look({flow_id: self.bound(flow_id) for flow_id in flow_ids}, now)
            self._looks = [one for one in self._looks if now - one.began < TRUSTED_MICROS]
            self._looks.append(look)
        return look

    def over(self, look: Look) -> None:
        """This look found nothing to take."""
        with self._lock:
            if look in self._looks:
                self._looks.remove(look)

    def seen(self, heads: Mapping[int, Place], look: Look) -> None:
        """A committed claim took work from here on. What became available since its look began, and before what it took,
        must not be hidden: the bound stays at that. A look that began at LOWEST renews the trust.
        """
        with self._lock:
            if look not in self._looks:
                return
            self._looks.remove(look)
            for flow_id, head in heads.items():
                place = min(head, look.lowest.get(flow_id, head))
                known = self._bounds.get(flow_id)
                if look.bounds[flow_id] == LOWEST:
                    self._bounds[flow_id] = (place, steady_micros())
                elif known is not None:
                    self._bounds[flow_id] = (place, known[1])

    def lower(self, flow_id: int, place: Place) -> None:
        """Work has become available here."""
        with self._lock:
            known = self._bounds.get(flow_id)
            if known is not None and place < known[0]:
                self._bounds[flow_id] = (place, known[1])
            for look in self._looks:
                if flow_id in look.bounds:
                    look.lowest[flow_id] = min(place, look.lowest.get(flow_id, place))

    def forget(self, flow_id: int) -> None:
        """The bound hid work, or there may be some anywhere."""
        with self._lock:
            self._bounds.pop(flow_id, None)
            for look in self._looks:
                if flow_id in look.bounds:
                    look.lowest[flow_id] = LOWEST
