"""What the cache tells metrics: what became of this process's calls. By no namespace: there may be very many."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.primitives.cache.here import Here
from app.runtime.runtime import Runtime

_LOOKS = ("fresh", "stale", "miss", "fill", "filling")
_CHANGES = ("put", "filled", "fill_failed", "deleted", "cleared", "evicted")


def collect(runtime: Runtime) -> Sequence[Metric]:
    """From memory alone."""
    memory: Here = runtime.state("cache")
    counts = memory.counts()
    looks = CounterMetricFamily("tenure_cache_lookups", "Lookups in this process by what was found.", labels=["found"])
    for word in _LOOKS:
        looks.add_metric([word], counts[word])
    changes = CounterMetricFamily("tenure_cache_changes", "Changes by this process by kind.", labels=["kind"])
    for word in _CHANGES:
        changes.add_metric([word], counts[word])
    waiting = GaugeMetricFamily(
        "tenure_cache_waiting", "Callers that wait here for a value.", value=len(runtime.desks["cache"])
    )
    return [looks, changes, waiting]
