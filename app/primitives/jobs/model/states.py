"""States, kinds and reasons: the words of jobs, ids, and the pauses between attempts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import IntEnum, IntFlag, StrEnum

from uuid_utils import uuid7

from app.clock import micros


class State(IntEnum):
    """Numbers are what the database holds; they never change their meaning."""

    AVAILABLE = 0
    RUNNING = 1
    SCHEDULED = 2
    SUCCEEDED = 4
    DEAD = 5
    CANCELLED = 6
    UNKNOWN = 7
    # not beside SCHEDULED in the index of what is due: the sweep that takes due rows locks the first entry behind them too,
    # and that would be the very job that whoever gives a slot away must write
    BLOCKED = 8

    @property
    def text(self) -> str:
        return self.name.lower()


class Mark(IntFlag):
    """What a job has that most have not; the bits stand in its hot row, so that a job without them pays nothing."""

    UNIQUE_UNTIL_STARTED = 1
    UNIQUE_UNTIL_FINISHED = 2
    DEBOUNCED = 4
    CONCURRENCY = 8
    TERMINAL_HANDLER = 16  # it handles the end of another job; its own end is not handled


WAITING = (State.AVAILABLE, State.SCHEDULED, State.BLOCKED)
ENDED = (State.SUCCEEDED, State.DEAD, State.CANCELLED)
STATE_NAMES = {state.text: state for state in State}


class Kind(StrEnum):
    """Kinds of events. `enqueued`, `claimed` and `succeeded` are told by the job's own row, the others are stored."""

    ENQUEUED = "enqueued"
    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RELEASED = "released"
    ABANDONED = "abandoned"
    DEAD = "dead"
    CANCEL_REQUESTED = "cancel_requested"
    CANCELLED = "cancelled"
    RETRIED = "retried"
    RECONCILED = "reconciled"
    REPLACED = "replaced"
    HANDLED = "handled"


class Outcome(StrEnum):
    """How a worker settles."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RELEASED = "released"


class ReleaseReason(StrEnum):
    SHUTDOWN = "shutdown"
    THROTTLED = "throttled"
    UNSUPPORTED = "unsupported"
    OTHER = "other"


class Verdict(StrEnum):
    SUCCEEDED = "succeeded"
    RETRY = "retry"
    DEAD = "dead"


Flow = tuple[str, str, int]  # queue, type, schema_version


def new_id() -> bytes:
    """A fresh UUIDv7; made before the first try of what it names."""
    return uuid7().bytes


def id_text(raw: bytes) -> str:
    text = raw.hex()  # five times as fast as by way of a UUID, and every answer has some
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def id_bytes(text: str) -> bytes:
    """The bytes of an id whose form was checked."""
    return bytes.fromhex(text.replace("-", ""))


def backoff(pauses: Sequence[float], failures: int, *, spread: float | None = None) -> int:
    """Microseconds until the next attempt after so many failures (from 1): escalating, the last pause repeats, with up to
    a fifth of jitter on top, so that what failed together does not come back together.
    """
    pause = pauses[min(max(failures, 1), len(pauses)) - 1]
    return micros(pause * (1 + 0.2 * (random.random() if spread is None else spread)))
