"""Statistics: counts, ages, durations and rates by flow, and the workers. Read from the table and this process's memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.clock import micros, steady_micros
from app.db.tx import Tx
from app.primitives.jobs.here import MINUTE, Here, Sighting
from app.primitives.jobs.model import DURATION_BUCKET, Claim, Figure, Flow, State, bucket_ceiling
from app.primitives.jobs.ops import flows, workers
from app.primitives.jobs.store import figures as store
from app.primitives.jobs.store import lists

WINDOW = 60 * MINUTE
FIGURES_KEPT = 25 * 60 * MINUTE
FRESH = micros(1)
COST_FACTOR = 10  # a report is kept for so many times as long as it took: reading it is never a tenth of anything
CHUNK = 500
MINUTES_AT_ONCE = 3

Taken = tuple[Counter[tuple[int, int, int]], dict[tuple[str, str], Sighting]]


@dataclass(frozen=True, slots=True)
class Stats:
    """A look at the statistics, at most `max_age` microseconds old. `waiting`: claims that wait at this process's desk."""

    max_age: int = FRESH
    waiting: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class FlowFigures:
    """One flow, or several added up. `oldest` is the least `available_at` of what is available; sums are of the last hour."""

    counts: Counter[State] = field(default_factory=Counter)
    oldest: int | None = None
    sums: Counter[int] = field(default_factory=Counter)

    def plus(self, other: FlowFigures) -> FlowFigures:
        ages = [moment for moment in (self.oldest, other.oldest) if moment is not None]
        return FlowFigures(self.counts + other.counts, min(ages, default=None), self.sums + other.sums)

    @property
    def durations(self) -> dict[int, int]:
        """How many succeeded, by bucket of their duration, the shortest first."""
        return {figure: amount for figure, amount in sorted(self.sums.items()) if figure >= DURATION_BUCKET}

    def mean_duration(self) -> float | None:
        """Microseconds; None if nothing succeeded."""
        count = sum(self.durations.values())
        return self.sums[Figure.DURATION] / count if count else None

    def p95_duration(self) -> int | None:
        return self.percentile(95)

    def percentile(self, percent: int) -> int | None:
        """The longest duration, in microseconds, of the bucket in which so many of a hundred lie; None for none."""
        durations = self.durations
        place = -(-percent * sum(durations.values()) // 100)
        for figure, amount in durations.items():
            place -= amount
            if place <= 0:
                return bucket_ceiling(figure)
        return None


@dataclass(frozen=True, slots=True)
class Worker:
    worker: str
    queue: str
    last_claimed_at: int | None
    last_beat_at: int | None
    state: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything at one moment. `paused_at` has every queue, those without any job too."""

    at: int
    cost: int
    flows: Mapping[Flow, FlowFigures]
    paused_at: Mapping[str, int | None]
    workers: tuple[Worker, ...]

    def of_queue(self, queue: str) -> FlowFigures:
        whole = FlowFigures()
        for flow, figures in self.flows.items():
            if flow[0] == queue:
                whole = whole.plus(figures)
        return whole


def read(tx: Tx, command: Stats) -> Report:
    """The newest report of this process if it is young enough, else a fresh one.

    Counts are exact. Sums miss what other replicas have seen in the last few seconds.
    """
    memory: Here = flows.here(tx)
    known: Report | None = memory.report
    if known is not None and 0 <= tx.now - known.at <= max(command.max_age, COST_FACTOR * known.cost):
        return known
    began = steady_micros()
    figures, paused_at = _figures(tx, memory), {row.name: row.paused_at for row in lists.select_queues(tx, None, None)}
    seen = workers.seen(tx, command.waiting)
    report = Report(tx.now, steady_micros() - began, figures, paused_at, _workers(tx, seen, figures, paused_at))
    memory.report = report
    return report


def _figures(tx: Tx, memory: Here) -> dict[Flow, FlowFigures]:
    found = {row.id: FlowFigures() for row in lists.select_all_flows(tx)}
    names = flows.names(tx, found)
    for row in store.select_counts(tx):
        state = State(row.state)
        known = found.get(row.flow_id, FlowFigures())
        known.counts[state] = row.jobs
        oldest = row.oldest if state is State.AVAILABLE else known.oldest
        found[row.flow_id] = FlowFigures(known.counts, oldest, known.sums)
    for (flow_id, figure), amount in _sums(tx, memory, WINDOW).items():
        if flow_id in found:
            found[flow_id].sums[figure] += amount
    return {names[flow_id]: figures for flow_id, figures in sorted(found.items()) if flow_id in names}


def _sums(tx: Tx, memory: Here, window: int) -> Counter[tuple[int, int]]:
    """Amounts by (flow id, figure) of the minutes that began within the window, this one included."""
    since = tx.now - tx.now % MINUTE - window + MINUTE
    sums: Counter[tuple[int, int]] = Counter()
    for row in store.select_sums(tx, since):
        sums[row.flow_id, row.figure] += int(row.amount)
    for (flow_id, minute, figure), amount in memory.snapshot()[0].items():
        if minute >= since:
            sums[flow_id, figure] += amount
    return sums


def practice(tx: Tx, window: int) -> dict[tuple[str, int], FlowFigures]:
    """What each (type, schema_version) did in all queues within the last `window` microseconds; sums only.

    Figures are kept for 25 hours. Misses what other replicas have seen in the last few seconds.
    """
    sums = _sums(tx, flows.here(tx), min(window, FIGURES_KEPT))
    names = flows.names(tx, {flow_id for flow_id, _ in sums})
    found: dict[tuple[str, int], FlowFigures] = defaultdict(FlowFigures)
    for (flow_id, figure), amount in sums.items():
        _, type_, version = names[flow_id]
        found[type_, version].sums[figure] += amount
    return dict(found)


def _workers(
    tx: Tx, seen: workers.Seen, figures: Mapping[Flow, FlowFigures], paused_at: Mapping[str, int | None]
) -> tuple[Worker, ...]:
    window = micros(tx.host.settings.silent_after_seconds)
    ready = [flow for flow, one in figures.items() if one.counts[State.AVAILABLE] and paused_at.get(flow[0]) is None]
    told = []
    for (worker, queue), sighting in sorted(seen.items()):
        has_work = any(
            queue == place and (sighting.last_claimed_at is None or workers.handles(sighting, type_, version))
            for place, type_, version in ready
        )
        state = workers.state_of(sighting, tx.now, window, has_work=has_work)
        told.append(Worker(worker, queue, sighting.last_claimed_at, sighting.last_beat_at, state))
    return tuple(told)


# -- the flush -------------------------------------------------------------------------------------------------------------


def flush(tx: Tx, commands: Sequence[Taken]) -> list[int]:
    """Add what this process has seen to the tables, and forget a little of what is old. Outcome: amounts written.

    Guarantee: nothing else is in this transaction, so its failure fails nothing else. After a COMMIT without an answer the
    amounts are not added again: then statistics may lack some seconds, and never hold them twice.
    """
    amounts: Counter[tuple[int, int, int]] = Counter()
    seen: dict[tuple[str, str], Sighting] = {}
    for figures, some in commands:
        amounts.update(figures)
        for key, newer in some.items():
            seen[key] = seen[key].with_newer(newer) if key in seen else newer
    if amounts and not tx.repeated:
        rows: list[dict[str, Any]] = [
            {"flow_id": flow_id, "minute": minute, "figure": int(figure), "amount": amount}
            for (flow_id, minute, figure), amount in sorted(amounts.items())
        ]
        for start in range(0, len(rows), CHUNK):
            store.add_figures(tx, rows[start : start + CHUNK])
    if seen:
        workers.write(tx, seen)
    store.delete_old_figures(tx, tx.now - FIGURES_KEPT, MINUTES_AT_ONCE)
    workers.forget(tx)
    return [len(figures) for figures, _ in commands]
