"""Destinations: how messages get there, and what the service may do with those of which it does not know. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.clock import micros


class Mode(StrEnum):
    """Who sends: workers that claim (`pull`), or the service itself (`http`)."""

    PULL = "pull"
    HTTP = "http"


class OnLeaseLoss(StrEnum):
    UNKNOWN = "unknown"
    RETRY = "retry"


class LateAck(StrEnum):
    REFUSE = "refuse"
    ACCEPT = "accept"


@dataclass(frozen=True, slots=True)
class Delivery:
    """`url`, `headers` and `timeout_seconds` are for `http` alone."""

    mode: Mode = Mode.PULL
    url: str | None = None
    headers: dict[str, str] | None = None
    timeout_seconds: float | None = None


class ReconcileMode(StrEnum):
    MANUAL = "manual"
    HTTP = "http"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Who finds out what became of an unknown message. `url` is for `http`; `queue`, `type`, `schema_version` for `job`."""

    mode: ReconcileMode = ReconcileMode.MANUAL
    url: str | None = None
    queue: str | None = None
    type: str | None = None
    schema_version: int | None = None


@dataclass(frozen=True, slots=True)
class Destination:
    """What was set of a destination. None: by the settings. Durations are seconds."""

    name: str
    delivery: Delivery = Delivery()
    idempotent: bool = False
    on_lease_loss: OnLeaseLoss = OnLeaseLoss.UNKNOWN
    late_ack: LateAck = LateAck.REFUSE
    max_attempts: int | None = None
    backoff_seconds: tuple[float, ...] | None = None
    delete_sent: bool = False
    retention_seconds: float | None = None
    reconcile: Reconcile = Reconcile()
    reconcile_budget: int | None = None

    def retention(self, default: float) -> int:
        """How long an ended message is kept, in microseconds."""
        return micros(default if self.retention_seconds is None else self.retention_seconds)
