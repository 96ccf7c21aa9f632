"""Whose turn it is, when claims name several queues and the preferred ones never run dry.

The order of preference is the caller's; it must not mean "never". A flow that had work and was given nothing, because
queues that were named before its own had filled the claim, has been passed over. After so many times in a row it gives the
next claim its first job; the rest of that claim goes by preference again. Counted by this process alone and never the truth:
with n replicas a job waits for n times as many claims at most.
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

    def due(self, flow_ids: Iterable[int]) -> set[int]:
        """Those of these flows that were passed over so often that it is their turn now."""
        if not self._passed:
            return set()
        return {flow_id for flow_id in flow_ids if self._passed.get(flow_id, 0) >= MOST_PASSED_OVER}

    def tell(self, passed_over: Iterable[int], served: Collection[int]) -> None:
        """A committed claim passed these flows over, and served these or found them empty."""
        with self._lock:
            for flow_id in passed_over:
                self._passed[flow_id] = self._passed.get(flow_id, 0) + 1
            for flow_id in served:
                self._passed.pop(flow_id, None)
