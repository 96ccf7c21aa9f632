"""What jobs tell health checks and metrics: from one report, at most 15 seconds old, that both share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.clock import micros, seconds
from app.errors import Refusal
from app.primitives.jobs.here import Here
from app.primitives.jobs.model import WAITING, Figure, State
from app.primitives.jobs.ops.stats import FlowFigures, Report, Stats
from app.primitives.jobs.ops.workers import SILENT
from app.runtime.checks import Check, Status
from app.runtime.runtime import Runtime
from app.settings import Settings

SHARED_FOR = micros(15)
_SETTLED = {
    Figure.SUCCEEDED: "succeeded",
    Figure.FAILED: "failed",
    Figure.RETRIED: "retried",
    Figure.DEAD: "dead",
    Figure.ABANDONED: "abandoned",
}


ALL = "*"  # a check about every queue: for keys that are not limited


async def checks(runtime: Runtime) -> list[Check]:
    """For each queue: how many jobs wait, how old the oldest is, how many are dead and unknown; and silent workers.

    `warn` above a threshold of the settings: none of these makes the service itself fail. A paused queue may be full and old.
    """
    report: Report = await runtime.lane("jobs.stats").submit(Stats(SHARED_FOR, tuple(runtime.desks["jobs"].waiting())))
    found = [check for queue in sorted(report.paused_at) for check in _of_queue(runtime.settings, report, queue)]
    silent = sorted({one.worker for one in report.workers if one.state == SILENT})
    output = f"beat but do not claim: {', '.join(silent[:5])}" if silent else None
    return [*found, Check("jobs.silent_workers", "warn" if silent else "pass", len(silent), "workers", output, ALL)]


def _of_queue(settings: Settings, report: Report, queue: str) -> Iterator[Check]:
    figures, paused = report.of_queue(queue), report.paused_at[queue] is not None
    depth, age = _depth(figures), _age(report, figures)
    yield _check(queue, "depth", depth, "jobs", None if paused else settings.health_queue_depth, "jobs wait")
    yield _check(
        queue,
        "oldest_available",
        age,
        "seconds",
        None if paused else settings.health_oldest_seconds,
        "seconds is how long the oldest available job has waited",
    )
    yield _check(queue, "dead", figures.counts[State.DEAD], "jobs", settings.health_dead, "jobs are dead")
    yield _check(queue, "unknown", figures.counts[State.UNKNOWN], "jobs", 0, "jobs wait for a verdict")


def _check(queue: str, figure: str, value: float, unit: str, most: float | None, what: str) -> Check:
    status: Status = "warn" if most is not None and value > most else "pass"
    output = None if status == "pass" else f"queue {queue}: {value:g} {what}; more than {most:g}"
    return Check(f"jobs.{queue}.{figure}", status, value, unit, output, queue)


def _depth(figures: FlowFigures) -> int:
    return sum(figures.counts[state] for state in WAITING)


def _age(report: Report, figures: FlowFigures) -> float:
    return 0.0 if figures.oldest is None else round(max(0.0, seconds(report.at - figures.oldest)), 3)


# -- metrics ---------------------------------------------------------------------------------------------------------------


def collect(runtime: Runtime) -> Sequence[Metric]:
    """From memory alone. A report that has become old is asked for anew; the next scrape finds it."""
    memory: Here = runtime.state("jobs")
    report: Report | None = memory.report
    if report is None or runtime.clock.now() - report.at > SHARED_FOR:
        _ask(runtime)
    return [*_gauges(report), *_counters(memory), _warnings(memory)]


def _ask(runtime: Runtime) -> None:
    lane = runtime.lane("jobs.stats")
    if lane.waiting:
        return
    try:
        _ = lane.put(Stats(SHARED_FOR, tuple(runtime.desks["jobs"].waiting())))
    except Refusal:  # too much is waiting in this process, or it ends; what is known is told
        return


def _gauges(report: Report | None) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("tenure_jobs", "Jobs by queue and state.", labels=["queue", "state"])
    oldest = GaugeMetricFamily(
        "tenure_queue_oldest_available_seconds",
        "How long the longest waiting job has been available; 0 if none is.",
        labels=["queue"],
    )
    paused = GaugeMetricFamily("tenure_queue_paused", "1 while the queue is paused.", labels=["queue"])
    workers = GaugeMetricFamily("tenure_job_workers", "Workers by queue and state.", labels=["queue", "state"])
    seen: Counter[tuple[str, str]] = Counter()
    if report is not None:
        seen.update((one.queue, one.state) for one in report.workers)
        for queue, paused_at in report.paused_at.items():
            figures = report.of_queue(queue)
            for state in State:
                jobs.add_metric([queue, state.text], figures.counts[state])
            oldest.add_metric([queue], _age(report, figures))
            paused.add_metric([queue], int(paused_at is not None))
    for key, count in sorted(seen.items()):
        workers.add_metric(list(key), count)
    return iter((jobs, oldest, paused, workers))


def _counters(memory: Here) -> Iterator[Metric]:
    claims = CounterMetricFamily("tenure_job_claims", "Attempts that this process began.", labels=["queue", "type"])
    ends = CounterMetricFamily(
        "tenure_job_settlements",
        "How attempts ended in this process; `retried` and `dead` beside the failure itself.",
        labels=["queue", "type", "outcome"],
    )
    sums: dict[tuple[str, str, Figure], int] = {}
    for (flow_id, figure), amount in memory.totals().items():
        flow: Any = memory.flow(flow_id)
        if flow is not None:
            key = flow[0], flow[1], Figure(figure)
            sums[key] = sums.get(key, 0) + amount
    for (queue, type_, figure), amount in sorted(sums.items()):
        if figure is Figure.CLAIMED:
            claims.add_metric([queue, type_], amount)
        elif figure in _SETTLED:
            ends.add_metric([queue, type_, _SETTLED[figure]], amount)
    return iter((claims, ends))


def _warnings(memory: Here) -> Metric:
    warned = CounterMetricFamily(
        "tenure_jobs_contract_warnings",
        "Jobs that this process took with a contract warning, by queue and code.",
        labels=["queue", "code"],
    )
    for (queue, code), jobs in sorted(memory.warnings().items()):
        warned.add_metric([queue, code], jobs)
    return warned
