"""What the outbox tells health checks and metrics: from one report, at most 15 seconds old, that both share; and what the
couriers of this process know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from app.clock import MICROS
from app.errors import Refusal
from app.primitives.outbox.delivery.couriers import Couriers
from app.primitives.outbox.delivery.timing import BUCKETS
from app.primitives.outbox.here import Here
from app.primitives.outbox.model.states import STATE_NAMES, Kind
from app.primitives.outbox.ops.inspect import DestinationFigures
from app.primitives.outbox.ops.report import Look, Report
from app.runtime.checks import Check, Status
from app.runtime.runtime import Runtime
from app.settings import Settings

ALL = "*"  # about every destination: for keys that are not limited
_WAITING = ("pending", "blocked")
_ENDINGS = (
    Kind.SENT,
    Kind.RETRIED,
    Kind.REJECTED,
    Kind.UNKNOWN,
    Kind.RELEASED,
    Kind.ABANDONED,
    Kind.DEAD,
)


async def checks(runtime: Runtime) -> list[Check]:
    """For each destination: how many messages wait, how old the oldest is, how many are dead, unknown and need an operator;
    and for those that this process delivers to, whether it does. `warn` above a threshold of the settings.
    """
    report: Report = await runtime.lane("outbox.report").submit(Look())
    aside = report.stats.set_aside
    output = f"{aside} rows of producers were set aside: GET /v1/outbox/stats, and docs/outbox.md" if aside else None
    found = [check for figures in report.stats.destinations for check in _of(runtime.settings, figures)]
    couriers: Couriers = runtime.state("outbox.couriers")
    return [
        *found,
        Check("outbox.set_aside", "warn" if aside else "pass", aside, "rows", output, ALL),
        *_delivery(couriers),
    ]


def _of(settings: Settings, figures: DestinationFigures) -> Iterator[Check]:
    name, counts = figures.destination, figures.counts
    waiting = sum(counts[state] for state in _WAITING)
    age = round(figures.oldest_pending_age_seconds or 0.0, 3)
    yield _check(name, "waiting", waiting, "messages", settings.health_outbox_pending, "messages are not sent yet")
    yield _check(
        name,
        "oldest_pending",
        age,
        "seconds",
        settings.health_outbox_oldest_seconds,
        "seconds is how long the oldest pending message could have been delivered",
    )
    yield _check(name, "dead", counts["dead"], "messages", settings.health_dead, "messages are dead")
    yield _check(
        name, "unknown", counts["unknown"], "messages", 0, "messages may have been sent and wait for a verdict"
    )
    yield _check(
        name,
        "needs_operator",
        figures.needs_operator,
        "messages",
        0,
        "unknown and prepared messages only an operator can decide",
    )


def _check(name: str, figure: str, value: float, unit: str, most: float, what: str) -> Check:
    status: Status = "warn" if value > most else "pass"
    output = None if status == "pass" else f"destination {name}: {value:g} {what}; more than {most:g}"
    return Check(f"outbox.{name}.{figure}", status, value, unit, output, name)


def _delivery(couriers: Couriers) -> Iterator[Check]:
    for name, why in sorted(couriers.unreadable.items()):
        yield Check(
            f"outbox.{name}.delivery", "warn", output=f"destination {name} is not delivered to: {why}", subject=name
        )
    for name, seconds in sorted(couriers.left_alone().items()):
        output = (
            f"destination {name} fails again and again, and is left alone for {seconds:.0f} seconds"
            if seconds
            else None
        )
        yield Check(
            f"outbox.{name}.delivery", "warn" if seconds else "pass", round(seconds, 1), "seconds", output, name
        )


# -- metrics ---------------------------------------------------------------------------------------------------------------


def collect(runtime: Runtime) -> Sequence[Metric]:
    """From memory alone. A report that has become old is asked for anew; the next scrape finds it."""
    memory: Here = runtime.state("outbox")
    report: Report | None = memory.report
    if report is None or runtime.clock.now() - report.at > Look().max_age:
        _ask(runtime)
    couriers: Couriers = runtime.state("outbox.couriers")
    return [*_gauges(report), *_counters(memory), *_deliveries(couriers)]


def _ask(runtime: Runtime) -> None:
    lane = runtime.lane("outbox.report")
    if lane.waiting:
        return
    try:
        _ = lane.put(Look())
    except Refusal:  # too much is waiting in this process, or it ends; what is known is told
        return


def _gauges(report: Report | None) -> Iterable[Metric]:
    messages = GaugeMetricFamily(
        "tenure_outbox_messages", "Messages by destination and state.", labels=["destination", "state"]
    )
    oldest = GaugeMetricFamily(
        "tenure_outbox_oldest_pending_seconds",
        "How long the longest waiting message could have been delivered; 0 if none could.",
        labels=["destination"],
    )
    needs = GaugeMetricFamily(
        "tenure_outbox_needs_operator",
        "Unknown and prepared messages that only an operator can decide.",
        labels=["destination"],
    )
    aside = GaugeMetricFamily("tenure_outbox_set_aside", "Rows that producers wrote wrongly by SQL.")
    if report is not None:
        for figures in report.stats.destinations:
            name = figures.destination
            for state in STATE_NAMES:
                messages.add_metric([name, state], figures.counts[state])
            oldest.add_metric([name], figures.oldest_pending_age_seconds or 0.0)
            needs.add_metric([name], figures.needs_operator)
        aside.add_metric([], report.stats.set_aside)
    return messages, oldest, needs, aside


def _counters(memory: Here) -> Iterable[Metric]:
    labels = ["destination", "type"]
    recorded = CounterMetricFamily("tenure_outbox_recorded", "Messages that this process took.", labels=labels)
    claims = CounterMetricFamily("tenure_outbox_claims", "Attempts that this process began.", labels=labels)
    ends = CounterMetricFamily(
        "tenure_outbox_settlements",
        "How attempts ended in this process; `dead` beside the settlement itself.",
        labels=[*labels, "outcome"],
    )
    by_word = {Kind.RECORDED: recorded, Kind.CLAIMED: claims}
    for (flow, word), amount in sorted(memory.counts().items()):
        kind = Kind(word)
        if kind in by_word:
            by_word[kind].add_metric([*flow], amount)
        elif kind in _ENDINGS:
            ends.add_metric([*flow, word], amount)
    return recorded, claims, ends


def _deliveries(couriers: Couriers) -> Iterable[Metric]:
    times = HistogramMetricFamily(
        "tenure_delivery_seconds",
        "How long calls to a destination took, to the last byte of the answer.",
        labels=["destination", "outcome"],
    )
    for (name, outcome), timing in sorted(couriers.timings.items()):
        buckets = zip((*map(str, BUCKETS), "+Inf"), timing.cumulated(), strict=True)
        times.add_metric([name, outcome], list(buckets), timing.micros / MICROS)
    alone = GaugeMetricFamily(
        "tenure_delivery_left_alone",
        "1 while this process leaves a destination alone because it fails again and again.",
        labels=["destination"],
    )
    for name, seconds in sorted(couriers.left_alone().items()):
        alone.add_metric([name], int(seconds > 0))
    return times, alone
