"""Keys that a job may have besides its idempotency key: unique, debounce, concurrency. Values only.

Unique keys of a job type are one namespace and its debounce keys another; concurrency keys are one for the installation, for
they guard resources that several types may use. Keys are the same only if their bytes are.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from app.primitives.jobs.model.states import Mark

SOLE = Mark.UNIQUE_UNTIL_STARTED | Mark.UNIQUE_UNTIL_FINISHED | Mark.DEBOUNCED
UNTIL_STARTED = Mark.UNIQUE_UNTIL_STARTED | Mark.DEBOUNCED  # whose key is free from the first claim on


class Until(StrEnum):
    """How long a unique key keeps others out."""

    STARTED = "started"
    FINISHED = "finished"


class OnConflict(StrEnum):
    """What becomes of an enqueue whose unique key another job holds."""

    KEEP = "keep"
    REPLACE = "replace"
    REJECT = "reject"


class Place(IntEnum):
    """Where a job stands at its concurrency key. Numbers are what the database holds; they never change their meaning."""

    HOLDING = 0  # available or running: it has a slot
    WAITING = 1  # blocked: in line
    APART = 2  # scheduled, unknown or ended


@dataclass(frozen=True, slots=True)
class Unique:
    """At most one job of its type with this key."""

    name: bytes
    digest: bytes
    until: Until = Until.FINISHED
    on_conflict: OnConflict = OnConflict.KEEP

    @property
    def mark(self) -> Mark:
        return Mark.UNIQUE_UNTIL_STARTED if self.until is Until.STARTED else Mark.UNIQUE_UNTIL_FINISHED


@dataclass(frozen=True, slots=True)
class Debounce:
    """One run for all enqueues of one window: `delay` after the newest, at most `max_wait` after the first. Microseconds."""

    name: bytes
    digest: bytes
    delay: int
    max_wait: int

    @property
    def mark(self) -> Mark:
        return Mark.DEBOUNCED


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `limit` jobs with this key are available or running at once."""

    name: bytes
    digest: bytes
    limit: int


@dataclass(frozen=True, slots=True)
class KeysTold:
    """A job's keys as they are told; None where it has none."""

    unique: tuple[str, Until] | None = None
    debounce: tuple[str, int] | None = None  # with the moment at which it is due however often it is put off
    concurrency: tuple[str, int] | None = None  # with the key's limit now


NO_KEYS = KeysTold()


def unique_digest(type_: str, name: bytes) -> bytes:
    """What a unique key is known by. A type has no NUL in it, so each part ends where it seems to."""
    return hashlib.sha256(b"job unique\0" + type_.encode() + b"\0" + name).digest()


def debounce_digest(type_: str, name: bytes) -> bytes:
    """What a debounce key is known by."""
    return hashlib.sha256(b"job debounce\0" + type_.encode() + b"\0" + name).digest()


def concurrency_digest(name: bytes) -> bytes:
    """What a concurrency key is known by."""
    return hashlib.sha256(b"job concurrency\0" + name).digest()
