"""What the locks tell metrics: what has happened in this process, who waits in it, and how many locks are held."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.errors import Refusal
from app.primitives.locks.here import Here
from app.runtime.runtime import Runtime

_WORDS = {
    "acquired": "Locks that were acquired in this process.",
    "refused": "Calls for a lock that were answered `locked`.",
    "released": "Locks that their holders released.",
    "expired": "Locks whose holders were lost: the lease ended.",
    "broken": "Locks that operators broke.",
}


def collect(runtime: Runtime) -> Sequence[Metric]:
    """From memory alone. The number of held locks is asked for anew; the next scrape finds it."""
    memory: Here = runtime.state("locks")
    lane = runtime.lane("locks.count_held")
    if not lane.waiting:
        with suppress(Refusal):  # too much is waiting in this process, or it ends; what is known is told
            _ = lane.put(None)
    counts = memory.counts()
    families: list[Metric] = [
        CounterMetricFamily(f"tenure_locks_{word}", text, value=counts[word]) for word, text in _WORDS.items()
    ]
    families.append(
        GaugeMetricFamily(
            "tenure_locks_waiting", "Calls that wait for a lock in this process.", value=len(runtime.desks["locks"])
        )
    )
    if memory.held is not None:
        families.append(GaugeMetricFamily("tenure_locks_held", "Locks that are held.", value=memory.held))
    return families
