"""Whose turn it is, when claims name several queues and the preferred ones never run dry.

The order of preference is the caller's; it must not mean "never". A flow that had work and was given nothing, because
queues that were named before its own had filled the claim, has been passed over. After so many times in a row its queue gives
the next claim one job, the best that the caller can handle; the rest of that claim goes by preference again, and the whole
queue begins to count anew. Within a queue its own order decides whose job that is. Counted by this process alone and never
the truth: with n replicas a queue waits for n times as many claims at most.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

MOST_PASSED_OVER = 16


@dataclass(slots=True)
class Turns:
    """How often in a row each flow was passed over. Touched by database threads, so each change is one step under the lock."""

    _passed: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, flow_ids: Iterable[int]) -> Turns:
        """A copy for these flows, in which the claims of one transaction are counted before it is committed."""
        with self._lock:
            return Turns({flow_id: self._passed[flow_id] for flow_id in flow_ids if flow_id in self._passed})

    def due(self, flow_ids: Iterable[int]) -> bool:
        """Whether one of these flows was passed over so often that it is their queue's turn now."""
        return any(self._passed.get(flow_id, 0) >= MOST_PASSED_OVER for flow_id in flow_ids)

    def tell(self, passed_over: Iterable[int], served: Collection[int]) -> None:
        """A claim passed these flows over, and served these (or others of their queue) or found them empty."""
        with self._lock:
            for flow_id in passed_over:
                self._passed[flow_id] = self._passed.get(flow_id, 0) + 1
            for flow_id in served:
                self._passed.pop(flow_id, None)


def passed_over(
    queues: Iterable[Collection[int]], *, seen: set[int], taken: set[int], full: bool
) -> tuple[set[int], set[int]]:
    """What one claim did to the flows of its queues: (passed over, served or found empty).

    `seen`: flows that had work for it. `taken`: flows that it took work of. `full`: it got all that it asked for.
    """
    passed: set[int] = set()
    served: set[int] = set()
    for flow_ids in queues:
        had_work = seen.intersection(flow_ids) if full and taken.isdisjoint(flow_ids) else set()
        passed |= had_work
        served |= set(flow_ids) - had_work
    return passed, served
