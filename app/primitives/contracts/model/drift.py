"""Drift: where practice has left what a contract promises. Pure: figures in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.clock import seconds
from app.primitives.contracts.model.contract import Contract, Effects
from app.primitives.contracts.model.effective import Defaults, InEffect

LEAST_RUNS = 20  # fewer successes say nothing of a 99th percentile
NEAR_TIMEOUT = 0.8
NEAR_BUDGET = 0.5


class DriftKind(StrEnum):
    TIMEOUT_NEAR = "timeout_near"
    RAN_TWICE = "ran_twice"
    DEAD_UNHANDLED = "dead_unhandled"
    NO_CONTRACT = "no_contract"
    LEASES_LOST = "leases_lost"


@dataclass(frozen=True, slots=True)
class Practice:
    """What one type and version did within the window. `p99`: of successful durations, in microseconds."""

    attempts: int = 0
    succeeded: int = 0
    dead: int = 0
    abandoned: int = 0
    duplicates: int = 0
    p99: int | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """One way in which promise and practice differ, with the figures that show it; durations in seconds."""

    kind: DriftKind
    detail: str
    figures: Mapping[str, float]


def without_contract(practice: Practice) -> Iterator[Drift]:
    """What is to be said of a type that has no contract: only that its work died, and nobody was told."""
    if practice.dead:
        yield Drift(
            DriftKind.NO_CONTRACT,
            "Work of this type is dead, and no contract says who takes care of it.",
            {"dead": practice.dead, "attempts": practice.attempts},
        )


def compare(contract: Contract, practice: Practice, defaults: Defaults) -> Iterator[Drift]:
    """Where this contract and what was seen differ."""
    effect = InEffect.of(contract, defaults)
    yield from _timeout(effect, practice)
    yield from _duplicates(contract, practice)
    if practice.dead and contract.terminal_handler is None:
        yield Drift(
            DriftKind.DEAD_UNHANDLED,
            "Work of this type is dead, and its contract names no terminal handler.",
            {"dead": practice.dead, "attempts": practice.attempts},
        )
    yield from _leases(effect, practice)


def _timeout(effect: InEffect, practice: Practice) -> Iterator[Drift]:
    if practice.p99 is None or practice.succeeded < LEAST_RUNS:
        return
    p99 = seconds(practice.p99)
    if p99 >= NEAR_TIMEOUT * effect.timeout:
        yield Drift(
            DriftKind.TIMEOUT_NEAR,
            "The slowest hundredth of the successful attempts comes near the timeout: soon good work is cut off.",
            {"timeout_seconds": effect.timeout, "p99_duration_seconds": p99, "succeeded": practice.succeeded},
        )


def _duplicates(contract: Contract, practice: Practice) -> Iterator[Drift]:
    if not practice.duplicates or contract.effects is Effects.NONE:
        return
    if contract.effects is Effects.NON_IDEMPOTENT:
        detail = "Attempts ran on beside a later attempt, and the effects must not happen twice: look at what they did."
    elif contract.effects is None:
        detail = "Attempts ran on beside a later attempt, and the contract does not say what that does."
    else:
        detail = (
            f"Attempts ran on beside a later attempt: the promise that effects are `{contract.effects}` was relied on."
        )
    yield Drift(DriftKind.RAN_TWICE, detail, {"duplicate_runs": practice.duplicates, "attempts": practice.attempts})


def _leases(effect: InEffect, practice: Practice) -> Iterator[Drift]:
    """Per run: a run is a job's whole life here, ended or not, so the attempts that followed a lost lease do not count."""
    runs = practice.attempts - practice.abandoned
    lost = practice.abandoned / max(1, runs)
    if practice.abandoned and lost >= NEAR_BUDGET * effect.max_lease_losses:
        yield Drift(
            DriftKind.LEASES_LOST,
            "Runs lose their leases so often that the budget of lost leases is half spent on the average run.",
            {
                "max_lease_losses": effect.max_lease_losses,
                "lease_losses_per_run": round(lost, 3),
                "lease_losses": practice.abandoned,
                "attempts": practice.attempts,
            },
        )
