"""Terms: what the contract of a job type promises, in the form that jobs decide by. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from app.primitives.jobs.model.payloads import PayloadSchema

Pair = tuple[str, int]  # type, schema_version

UNLIMITED = 2_147_483_647  # what stands in `jobs.max_attempts` of a job without a ceiling


@dataclass(frozen=True, slots=True)
class Handler:
    """What a death enqueues: a job of this queue, type and version; or records: a message of this type to `destination`."""

    queue: str | None = None
    type: str = ""
    schema_version: int = 1
    destination: str | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What is promised of one type and version. None means: by the settings.

    Durations and moments are microseconds, `backoff` is seconds. `retry_until` counts from the enqueue, or from the job's
    availability if that is later. `max_exceptions` is a ceiling of classified failures alone, lease losses apart. `at_most`:
    attempts that no enqueue may ask to go beyond, where a further one would do harm. `violations`: rules that the contract
    breaks and no exemption covers; from `valid_until` on `lapses` are broken as well.
    """

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
    at_most: int | None = None

    def broken(self, now: int) -> tuple[str, ...]:
        """The rules that are violated at this moment, each once."""
        lapsed = self.lapses if self.valid_until is not None and now >= self.valid_until else ()
        return tuple(dict.fromkeys((*self.violations, *lapsed)))


@dataclass(frozen=True, slots=True)
class Known:
    """One revision of terms as this process keeps it, with its schema compiled. `revision` is a digest of all of it."""

    revision: bytes
    terms: Terms
    schema: PayloadSchema | None


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides where an attempt that did not succeed leaves its job: the terms of its type, completed by the settings.

    `lease`: microseconds that the next claim gets if it names none; None: by the settings.
    """

    backoff: tuple[float, ...]
    on_lease_loss: str
    max_lease_losses: int
    max_exceptions: int | None
    lease: int | None
