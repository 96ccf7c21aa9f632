"""States, kinds and reasons: the words of jobs."""

from __future__ import annotations

from enum import IntEnum, IntFlag, StrEnum


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
