"""The values in effect: what a contract says, and where it says nothing, what the service is set to."""

from __future__ import annotations

from dataclasses import dataclass

from app.primitives.contracts.model.contract import Contract, OnLeaseLoss
from app.settings import Settings

JITTER = 0.2  # of a pause, on top of it


@dataclass(frozen=True, slots=True)
class Defaults:
    """What counts where a contract is silent. Durations in seconds.

    `retention`: how long an ended job is kept, and with it its idempotency key and its events.
    """

    attempts: int = 5
    backoff: tuple[float, ...] = (10.0, 60.0, 300.0, 900.0)
    timeout: float = 3600.0
    lease: float = 60.0  # of a claim that names none
    on_lease_loss: OnLeaseLoss = OnLeaseLoss.RETRY
    max_lease_losses: int = 3
    retention: float = 604_800.0

    @classmethod
    def of(cls, settings: Settings) -> Defaults:
        return cls(
            attempts=settings.jobs_max_attempts,
            backoff=settings.jobs_backoff_seconds,
            timeout=settings.jobs_timeout_seconds,
            lease=settings.jobs_lease_seconds,
            on_lease_loss=OnLeaseLoss(settings.jobs_on_lease_loss),
            max_lease_losses=settings.jobs_max_lease_losses,
            retention=settings.jobs_retention_seconds,
        )


@dataclass(frozen=True, slots=True)
class InEffect:
    """One contract over the defaults. Durations in seconds.

    `attempts`: the most that are made; None where only a deadline or nothing ends them.
    """

    attempts: int | None
    deadline: float | None
    backoff: tuple[float, ...]
    timeout: float
    lease: float
    on_lease_loss: OnLeaseLoss
    max_lease_losses: int

    @classmethod
    def of(cls, contract: Contract, defaults: Defaults) -> InEffect:
        retry = contract.retry
        attempts: int | None = defaults.attempts
        if retry is not None and retry.max_attempts is not None:
            attempts = retry.max_attempts
        elif retry is not None and (retry.retry_until_seconds is not None or retry.unlimited_reason is not None):
            attempts = None
        return cls(
            attempts=attempts,
            deadline=None if retry is None else retry.retry_until_seconds,
            backoff=defaults.backoff if contract.backoff_seconds is None else tuple(contract.backoff_seconds),
            timeout=defaults.timeout if contract.timeout_seconds is None else contract.timeout_seconds,
            lease=defaults.lease if contract.lease_seconds is None else contract.lease_seconds,
            on_lease_loss=contract.on_lease_loss or defaults.on_lease_loss,
            max_lease_losses=contract.max_lease_losses or defaults.max_lease_losses,
        )

    @property
    def repeats(self) -> bool:
        """Whether there may be more than one attempt."""
        return self.attempts is None or self.attempts > 1

    def horizon(self) -> float | None:
        """The longest time from the first claim to the end of the last attempt, work that waits for a worker aside.

        None for attempts without limit: they have no end that a retention could cover.
        """
        if self.deadline is not None:
            return self.deadline + self.timeout
        if self.attempts is None:
            return None
        pauses = self.attempts - 1
        listed = self.backoff[:pauses]
        waited = sum(listed) + max(0, pauses - len(listed)) * self.backoff[-1]
        return waited * (1 + JITTER) + self.attempts * self.timeout
