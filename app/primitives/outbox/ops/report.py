"""The figures of the outbox for health checks and metrics: read at most so often, and shared by all who ask."""

from __future__ import annotations

from dataclasses import dataclass

from app.access import Principal
from app.clock import micros, steady_micros
from app.db.tx import Tx
from app.primitives.outbox.here import Here
from app.primitives.outbox.ops import flows, inspect

COST_FACTOR = 10  # a report is kept for so many times as long as it took: reading it is never a tenth of anything
_EVERYBODY = Principal("figures", "figures", frozenset())


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the figures, at most `max_age` microseconds old."""

    max_age: int = micros(15)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything at one moment."""

    at: int
    cost: int
    stats: inspect.Stats


def read(tx: Tx, command: Look) -> Report:
    """The newest report of this process if it is young enough, else a fresh one."""
    memory: Here = flows.here(tx)
    known: Report | None = memory.report
    if known is not None and 0 <= tx.now - known.at <= max(command.max_age, COST_FACTOR * known.cost):
        return known
    began = steady_micros()
    stats = inspect.stats(tx, _EVERYBODY)
    report = Report(tx.now, steady_micros() - began, stats)
    memory.report = report
    return report
