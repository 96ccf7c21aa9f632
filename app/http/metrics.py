"""`/metrics`: this process's own figures, in a registry of its own so that two applications in one process never mix.

Names begin with `tenure_`. HTTP figures are labelled by route template, never by path. What primitives know (`collect` in
their manifests) is read when Prometheus asks; it must come from memory, not from the database.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from app.access import Role
from app.http.auth import identify
from app.http.call import Answer, Call
from app.http.pages import TextRead
from app.http.routing import OPEN, thin_router
from app.runtime import clearing

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})

Collect = Callable[[Any], Iterable[Metric]]

router = thin_router(tags=["operations"])


def release() -> str:
    """The version of this release; `0` when it runs from a source tree that is not installed."""
    try:
        return installed("tenure")
    except PackageNotFoundError:
        return "0"


class Metrics:
    """The figures of one application."""

    def __init__(self, runtime: Any, collectors: Sequence[Collect] = ()) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._answered: dict[tuple[str, str, int], _Answered] = {}
        Info("tenure_build", "The running release.", registry=self.registry).info({"version": release()})
        ProcessCollector(namespace="tenure", registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(_HttpCollector(self._answered))
        self.registry.register(_RuntimeCollector(runtime, collectors))

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request. `route` is a template, so that the number of series is bounded. Only from the event loop."""
        answered = self._answered.get((method, route, status))
        if answered is None:
            known = method if method in _METHODS else "other"
            answered = self._answered.setdefault((known, route, status), _Answered())
        answered.counts[bisect_left(_BUCKETS, seconds)] += 1
        answered.seconds += seconds

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))


@dataclass(slots=True)
class _Answered:
    """The requests of one method, route and status: how many took at most so long (the last: longer than any bucket says).
    Plain numbers: every request is counted, and the library's own counters take a lock for each.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(_BUCKETS) + 1))
    seconds: float = 0.0


class _HttpCollector(Collector):
    """What was answered, read at the moment of asking."""

    def __init__(self, answered: Mapping[tuple[str, str, int], _Answered]) -> None:
        self._answered = answered

    def describe(self) -> Iterable[Metric]:
        return _http({})

    def collect(self) -> Iterable[Metric]:
        return _http(self._answered)


def _http(answered: Mapping[tuple[str, str, int], _Answered]) -> Iterable[Metric]:
    requests = CounterMetricFamily("tenure_http_requests", "Requests answered.", labels=["method", "route", "status"])
    times = HistogramMetricFamily(
        "tenure_http_request_seconds",
        "Time from a request's first byte to its answer; long polls wait on purpose.",
        labels=["method", "route"],
    )
    together: dict[tuple[str, str], _Answered] = defaultdict(_Answered)
    for (method, route, status), one in answered.items():
        requests.add_metric([method, route, str(status)], sum(one.counts))
        both = together[method, route]
        both.counts = [left + right for left, right in zip(both.counts, one.counts, strict=True)]
        both.seconds += one.seconds
    for labels, both in together.items():
        buckets = zip((*map(str, _BUCKETS), "+Inf"), accumulate(both.counts), strict=True)
        times.add_metric(list(labels), list(buckets), both.seconds)
    return requests, times


class _RuntimeCollector(Collector):
    """Lanes, loops, database faults and what the primitives collect, read from memory at the moment of asking."""

    def __init__(self, runtime: Any, collectors: Sequence[Collect]) -> None:
        self._runtime = runtime
        self._collectors = collectors

    def describe(self) -> Iterable[Metric]:
        return []  # nothing is asked of a runtime that has not started

    def collect(self) -> Iterable[Metric]:
        runtime = self._runtime
        yield from _lanes(runtime.lanes)
        yield from _loops(runtime.loops)
        yield _desks(runtime.desks)
        yield from _service(runtime)
        yield from clearing.collect(runtime)
        for collect in self._collectors:
            yield from collect(runtime)


def _lanes(lanes: Iterable[Any]) -> Iterable[Metric]:
    waiting = GaugeMetricFamily("tenure_lane_waiting", "Weight of the commands that wait in a lane.", labels=["lane"])
    served = CounterMetricFamily("tenure_lane_commands", "Commands that a lane has served.", labels=["lane"])
    batches = CounterMetricFamily("tenure_lane_batches", "Transactions that a lane has run.", labels=["lane"])
    for lane in lanes:
        waiting.add_metric([lane.spec.name], lane.weight)
        served.add_metric([lane.spec.name], lane.served)
        batches.add_metric([lane.spec.name], lane.batches)
    return waiting, served, batches


def _desks(desks: dict[str, Any]) -> Metric:
    waiting = GaugeMetricFamily("tenure_desk_waiting", "Claims that wait for work in this process.", labels=["desk"])
    for name, desk in desks.items():
        waiting.add_metric([name], len(desk))
    return waiting


def _loops(loops: dict[str, Any]) -> Iterable[Metric]:
    age = GaugeMetricFamily(
        "tenure_loop_last_success_age_seconds", "Seconds since a loop last succeeded.", labels=["loop"]
    )
    failures = CounterMetricFamily("tenure_loop_failures", "Rounds of a loop that failed.", labels=["loop"])
    for name, loop in loops.items():
        age.add_metric([name], loop.age_seconds())
        failures.add_metric([name], loop.failures)
    return age, failures


def _service(runtime: Any) -> Iterable[Metric]:
    faults = CounterMetricFamily("tenure_database_faults", "Faults that the retry boundary met.", labels=["kind"])
    for kind, count in dict(runtime.database.faults).items():
        faults.add_metric([kind], count)
    yield faults
    yield GaugeMetricFamily("tenure_draining", "1 while this process ends.", value=int(runtime.draining.is_set()))
    age = runtime.state("keys").age_seconds()
    if age is not None:
        yield GaugeMetricFamily("tenure_api_keys_age_seconds", "Age of this process's copy of the API keys.", value=age)


@router.get(
    "/metrics",
    name="get_metrics",
    requires=OPEN,
    answers=TextRead,
    media_type="text/plain",
    response_description="Prometheus text format.",
)
async def get_metrics(call: Call) -> Answer:
    """Get this process's metrics for Prometheus.

    Counters are this process's own: sum them over the replicas. Open by default; with `TENURE_METRICS_ACCESS=key` it needs
    a key with the role `viewer`.
    """
    if call.runtime.settings.metrics_access == "key":
        (await identify(call.scope, call.runtime)).require(Role.VIEWER)
    return Answer(call.scope["app"].state.metrics.text(), media_type=CONTENT_TYPE_LATEST)
