"""What this process remembers of jobs between requests: flow ids, what it has seen. Never the truth, always rebuildable.

Ops reach it as `tx.host.state("jobs")`. It is touched by database threads, so every change is one step under the lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.clock import micros
from app.primitives.jobs.heads import Heads
from app.primitives.jobs.model import Figure, Flow, duration_bucket
from app.primitives.jobs.model.terms import Known, Pair
from app.primitives.jobs.turns import Turns

MINUTE = micros(60)

Limits = tuple[int | None, int | None, str | None]  # of a queue: max_depth, retention_seconds, contract_policy


@dataclass(slots=True)
class Sighting:
    """When a worker last claimed from and last beat in a queue, in microseconds, and what it said it can do."""

    handlers: tuple[tuple[str, tuple[int, ...]], ...] = ()
    last_claimed_at: int | None = None
    last_beat_at: int | None = None
    seen_at: int = 0

    def with_newer(self, newer: Sighting) -> Sighting:
        """Both together. Handlers are known from a claim only."""
        claims = [seen for seen in (newer, self) if seen.last_claimed_at is not None]
        beats = [seen.last_beat_at for seen in (self, newer) if seen.last_beat_at is not None]
        newest = max(claims, key=lambda seen: seen.last_claimed_at or 0, default=newer)
        return Sighting(
            newest.handlers, newest.last_claimed_at, max(beats, default=None), max(self.seen_at, newer.seen_at)
        )


def _nobody_records(_tx: Any, _messages: Sequence[Any]) -> None:
    raise LookupError("a terminal handler records a message, and nobody keeps an outbox in this process")


@dataclass(slots=True)
class Here:
    """`wake(flows)`, `promote_in(seconds)` and `abandon_in(seconds)` tell the desk and the sweeps of this process."""

    wake: Callable[[Mapping[Flow, int]], None]
    promote_in: Callable[[float], None]
    abandon_in: Callable[[float], None]
    heads: Heads = field(default_factory=Heads)
    turns: Turns = field(default_factory=Turns)
    terms: dict[Pair, Known] = field(default_factory=dict)  # the newest revision seen; the database says which counts
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ids: dict[Flow, int] = field(default_factory=dict)
    _flows: dict[int, Flow] = field(default_factory=dict)
    _by_queue: dict[str, list[tuple[int, str, int]]] = field(default_factory=dict)
    _retention: dict[str, int | None] = field(default_factory=dict)
    _depth: dict[str, int | None] = field(default_factory=dict)
    _policies: dict[str, str | None] = field(default_factory=dict)
    _warnings: Counter[tuple[str, str]] = field(default_factory=Counter)
    _figures: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    _workers: dict[tuple[str, str], Sighting] = field(default_factory=dict)
    _totals: Counter[tuple[int, Figure]] = field(default_factory=Counter)
    record_owed: Callable[[Any, Sequence[Any]], None] = (
        _nobody_records  # messages that deaths owe, in their transaction
    )
    report: Any = None  # the newest statistics, for those who may see them a little older

    # -- flows: an id, once committed, never changes ---------------------------------------------------------------------

    def learn(self, rows: list[tuple[int, Flow]], queues: Mapping[str, Limits]) -> None:
        """Remember committed flows, and the limits of queues."""
        with self._lock:
            self._ids.update({flow: flow_id for flow_id, flow in rows})
            fresh = [(flow_id, flow) for flow_id, flow in rows if flow_id not in self._flows]
            self._flows.update(dict(rows))
            for flow_id, (queue, type_, version) in fresh:
                # a new list: readers may hold the old one
                self._by_queue[queue] = [*self._by_queue.get(queue, []), (flow_id, type_, version)]
            self._depth.update({name: depth for name, (depth, _, _) in queues.items()})
            self._retention.update({name: retention for name, (_, retention, _) in queues.items()})
            self._policies.update({name: policy for name, (_, _, policy) in queues.items()})

    def flow_id(self, flow: Flow) -> int | None:
        return self._ids.get(flow)

    def flow(self, flow_id: int) -> Flow | None:
        return self._flows.get(flow_id)

    def flows_of(self, queue: str) -> list[tuple[int, str, int]]:
        """The flows of a queue that this process knows, as (id, type, version)."""
        return self._by_queue.get(queue, [])

    def flow_ids_of(self, queue: str) -> list[int]:
        return [flow_id for flow_id, _, _ in self.flows_of(queue)]

    def came_back(self, flows: Mapping[Flow, int]) -> None:
        """Work has become available somewhere in these flows, perhaps before what was seen of them last."""
        for flow in flows:
            flow_id = self._ids.get(flow)
            if flow_id is not None:
                self.heads.forget(flow_id)
        self.wake(flows)

    def max_depth(self, queue: str) -> int | None:
        return self._depth.get(queue)

    def retention_seconds(self, queue: str) -> int | None:
        return self._retention.get(queue)

    def knows_queue(self, queue: str) -> bool:
        return queue in self._policies

    def contract_policy(self, queue: str) -> str | None:
        """None: by the settings."""
        return self._policies.get(queue)

    # -- figures: flushed by a loop; what a crash loses is a few seconds of statistics -------------------------------------

    def count(
        self, now: int, figures: Mapping[tuple[int, Figure], int], durations: list[tuple[int, int]] | None = None
    ) -> None:
        """Add amounts by (flow id, figure), and successful durations (flow id, microseconds)."""
        minute = now - now % MINUTE
        with self._lock:
            for (flow_id, figure), amount in figures.items():
                self._figures[flow_id, minute, figure] += amount
                self._totals[flow_id, figure] += amount
            for flow_id, duration in durations or ():
                self._figures[flow_id, minute, Figure.DURATION] += duration
                self._figures[flow_id, minute, duration_bucket(duration)] += 1

    def claimed(
        self, now: int, worker: str, queues: tuple[str, ...], handlers: tuple[tuple[str, tuple[int, ...]], ...]
    ) -> None:
        with self._lock:
            for queue in queues:
                seen = self._workers.setdefault((worker, queue), Sighting())
                seen.handlers, seen.last_claimed_at, seen.seen_at = handlers, now, now

    def beaten(self, now: int, worker: str, queue: str) -> None:
        with self._lock:
            seen = self._workers.setdefault((worker, queue), Sighting())
            seen.last_beat_at = seen.seen_at = now

    def take(self) -> tuple[Counter[tuple[int, int, int]], dict[tuple[str, str], Sighting]]:
        """What was seen since the last time, for the flush."""
        with self._lock:
            figures, self._figures = self._figures, Counter()
            workers, self._workers = self._workers, {}
            return figures, workers

    def give_back(self, figures: Counter[tuple[int, int, int]], workers: dict[tuple[str, str], Sighting]) -> None:
        """The flush failed: keep what it was to write, and what was seen since."""
        with self._lock:
            self._figures.update(figures)
            for key, older in workers.items():
                newer = self._workers.get(key)
                self._workers[key] = older if newer is None else older.with_newer(newer)

    def snapshot(self) -> tuple[Counter[tuple[int, int, int]], dict[tuple[str, str], Sighting]]:
        """What the next flush will write; it is left where it is."""
        with self._lock:
            return Counter(self._figures), {key: replace(seen) for key, seen in self._workers.items()}

    def warned(self, warnings: Mapping[tuple[str, str], int]) -> None:
        """Count jobs that came in with a warning, by (queue, code)."""
        with self._lock:
            self._warnings.update(warnings)

    def warnings(self) -> Counter[tuple[str, str]]:
        """Jobs by (queue, code) of their warning since this process began."""
        with self._lock:
            return Counter(self._warnings)

    def totals(self) -> Counter[tuple[int, Figure]]:
        """Amounts by (flow id, figure) since this process began."""
        with self._lock:
            return Counter(self._totals)
