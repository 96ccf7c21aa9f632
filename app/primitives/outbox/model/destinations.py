"""Destinations: how messages get there, and what the service may do with those of which it does not know. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    """All but `mode` is for `http` alone. The values of headers are secrets, as the signing secret is: see `Secrets`."""

    mode: Mode = Mode.PULL
    url: str | None = None
    header_names: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    max_in_flight: int | None = None
    max_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class SigningSecret:
    """`until`: the moment up to which one that was replaced still signs; None for the current one."""

    secret: str
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Secrets:
    """What of a destination is stored sealed, and never shown."""

    headers: dict[str, str] = field(default_factory=dict)
    signing: tuple[SigningSecret, ...] = ()

    def signing_at(self, now: int) -> tuple[str, ...]:
        """The secrets that sign at this moment, the current one first."""
        return tuple(one.secret for one in self.signing if one.until is None or one.until > now)

    def changed(self, headers: dict[str, str], secret: str | None, overlap: int, now: int) -> Secrets:
        """With these headers; with this signing secret in place of the current one, which signs on for `overlap`
        microseconds. None keeps the current one.
        """
        current = next((one.secret for one in self.signing if one.until is None), None)
        older = tuple(one for one in self.signing if one.until is not None and now < one.until)
        if overlap == 0:
            older = ()
        if secret is None or secret == current:
            return Secrets(headers, (*((SigningSecret(current),) if current else ()), *older))
        before = (SigningSecret(current, now + overlap),) if current and overlap else ()
        return Secrets(headers, (SigningSecret(secret), *before, *older))


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
