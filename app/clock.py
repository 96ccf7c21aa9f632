"""Moments and durations: integer microseconds since the epoch, UTC. No wall clock of this process ever decides.

`Clock` turns the process's steady clock into database time by an offset that `db` measures again and again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

MICROS = 1_000_000
MAX_MOMENT = 253_402_300_800 * MICROS - 1  # 9999-12-31T23:59:59.999999Z, the last that RFC 3339 can spell
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - only formats, and three times as fast
# BOOTTIME goes on while a virtual machine is suspended; MONOTONIC would come back believing that old leases still hold
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_micros() -> int:
    """Microseconds of a clock of this host that nobody can set. Only differences mean anything."""
    return time.clock_gettime_ns(_STEADY) // 1000


def micros(seconds: float) -> int:
    return round(seconds * MICROS)


def seconds(duration_micros: int) -> float:
    return duration_micros / MICROS


def backoff(pauses: Sequence[float], failures: int, *, spread: float | None = None) -> int:
    """Microseconds until the next attempt after so many failures (from 1): escalating, the last pause repeats, with up to
    a fifth of jitter on top, so that what failed together does not come back together.
    """
    pause = pauses[min(max(failures, 1), len(pauses)) - 1]
    return micros(pause * (1 + 0.2 * (random.random() if spread is None else spread)))


@lru_cache(maxsize=1024)  # all that one transaction makes has the same moments
def to_text(moment: int) -> str:
    """RFC 3339, UTC, microseconds, `Z`."""
    return (_NAIVE_EPOCH + timedelta(microseconds=moment)).isoformat(timespec="microseconds") + "Z"


def from_datetime(moment: datetime) -> int:
    """Microseconds of an aware datetime; exact, no float on the way."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


class Clock:
    """Database time as this process knows it.

    `adopt` takes a measured pair (steady time, database time). `shift` moves the time that this process sees by a
    constant; only tests use it.
    """

    def __init__(self) -> None:
        self._offset: int | None = None
        self.shift_micros = 0

    @property
    def measured(self) -> bool:
        return self._offset is not None

    def adopt(self, steady: int, database: int) -> int:
        """Take a new measurement; gives the step in microseconds against the one before (0 for the first)."""
        offset = database - steady
        step = 0 if self._offset is None else offset - self._offset
        self._offset = offset
        return step

    def now(self) -> int:
        """The database's time, in microseconds UTC. Before the first measurement: a programming error."""
        if self._offset is None:
            raise RuntimeError("the database's clock was not measured yet")
        return steady_micros() + self._offset + self.shift_micros
