"""Drift: every contract against the figures of its type, and types that die without one."""

from __future__ import annotations

from dataclasses import dataclass

from app.access import Principal
from app.clock import MICROS
from app.db.tx import Tx
from app.primitives.contracts.model.drift import Drift, Practice, compare, without_contract
from app.primitives.contracts.model.effective import Defaults
from app.primitives.contracts.ops.contracts import every
from app.primitives.jobs.model import Figure
from app.primitives.jobs.ops.stats import FlowFigures, practice

HOUR_MICROS = 3600 * MICROS


@dataclass(frozen=True, slots=True)
class Look:
    """`window` in microseconds; figures are kept for 25 hours."""

    principal: Principal
    window: int = 24 * HOUR_MICROS


@dataclass(frozen=True, slots=True)
class Drifted:
    type: str
    schema_version: int
    drift: Drift


@dataclass(frozen=True, slots=True)
class DriftReport:
    """`types`: how many types and versions did anything within the window; by type, version and kind."""

    at: int
    window: int
    contracts: int
    types: int
    items: tuple[Drifted, ...]


def drift(tx: Tx, command: Look) -> DriftReport:
    """What differs within the window, for the types that the key's patterns allow.

    Misses what other replicas have seen in the last few seconds.
    """
    allows, defaults = command.principal.allows, Defaults.of(tx.host.settings)
    seen = {key: _practice(sums) for key, sums in practice(tx, command.window).items() if allows(key[0])}
    promised = {(one.type, one.schema_version): one.contract for one in every(tx) if allows(one.type)}
    found: list[Drifted] = []
    for key in sorted(seen):
        contract = promised.get(key)
        told = without_contract(seen[key]) if contract is None else compare(contract, seen[key], defaults)
        found += (Drifted(*key, one) for one in told)
    return DriftReport(tx.now, command.window, len(promised), len(seen), tuple(found))


def _practice(figures: FlowFigures) -> Practice:
    sums = figures.sums
    return Practice(
        attempts=sums[Figure.CLAIMED],
        succeeded=sums[Figure.SUCCEEDED],
        dead=sums[Figure.DEAD],
        abandoned=sums[Figure.ABANDONED],
        duplicates=sums[Figure.DUPLICATE],
        p99=figures.percentile(99),
    )
