"""This process's memory of the outbox: flows and destinations, and whom to wake. Never the truth, always rebuildable.

Ops reach it as `tx.host.state("outbox")`. It is touched by database threads, so every change is one step under the lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.primitives.outbox.model.states import Flow


@dataclass(slots=True)
class Here:
    """`wake(flows)`, `promote_in(seconds)` and `abandon_in(seconds)` tell the desk and the sweeps of this process."""

    wake: Callable[[Mapping[Flow, int]], None]
    promote_in: Callable[[float], None]
    abandon_in: Callable[[float], None]
    doubted: Callable[[Mapping[Flow, int]], None] = lambda _flows: None  # messages of these flows became unknown
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ids: dict[Flow, int] = field(default_factory=dict)
    _flows: dict[int, Flow] = field(default_factory=dict)
    _by_destination: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    _counts: Counter[tuple[Flow, str]] = field(default_factory=Counter)
    report: Any = None  # the newest figures, for those who may see them a little older

    def learn(self, rows: Iterable[tuple[int, Flow]]) -> None:
        """Remember committed flows; an id, once committed, never changes."""
        with self._lock:
            for flow_id, flow in rows:
                if flow_id not in self._flows:
                    destination, type_ = flow
                    # a new list: readers may hold the old one
                    self._by_destination[destination] = [*self._by_destination.get(destination, []), (flow_id, type_)]
                self._ids[flow], self._flows[flow_id] = flow_id, flow

    def flow_id(self, flow: Flow) -> int | None:
        return self._ids.get(flow)

    def flow(self, flow_id: int) -> Flow | None:
        return self._flows.get(flow_id)

    def flows_of(self, destination: str) -> list[tuple[int, str]]:
        """The flows of a destination that this process knows, as (id, type)."""
        return self._by_destination.get(destination, [])

    def count(self, amounts: Mapping[tuple[Flow, str], int]) -> None:
        """Add what has happened in committed transactions, by flow and word (`recorded`, `claimed`, or a kind of event)."""
        with self._lock:
            self._counts.update(amounts)

    def counts(self) -> Counter[tuple[Flow, str]]:
        """What has happened since this process began."""
        with self._lock:
            return self._counts.copy()
