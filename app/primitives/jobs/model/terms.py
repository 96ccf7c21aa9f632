"""What a contract promises of a job type, in the form that jobs decide by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Handler:
    """What is made of a job that is dead: another job, or a message."""

    queue: str | None = None
    type: str = ""
    schema_version: int = 1
    destination: str | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """None means: by the settings. Durations and moments in microseconds, pauses in seconds."""

    type: str
    schema_version: int
    max_attempts: int | None = None
    unlimited: bool = False
    retry_until: int | None = None
    max_exceptions: int | None = None
    backoff: tuple[float, ...] | None = None
    timeout: int | None = None
    lease: int | None = None
    on_lease_loss: str | None = None
    max_lease_losses: int | None = None
    handler: Handler | None = None
    payload_schema: bytes | None = None
    unique_by: str | None = None
    no_overlap_by: str | None = None
    violations: tuple[str, ...] = ()
    valid_until: int | None = None
    lapses: tuple[str, ...] = ()
