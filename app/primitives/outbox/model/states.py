"""States, kinds and reasons: the words of the outbox."""

from __future__ import annotations

from enum import IntEnum, StrEnum

Flow = tuple[str, str]  # destination, type


class State(IntEnum):
    """Numbers are what the database holds; they never change their meaning."""

    PENDING = 0
    SENDING = 1
    DELAYED = 2  # told as pending: it waits for its time or its backoff, and no claim looks at it
    PREPARED = 3
    SENT = 4
    DEAD = 5
    ABORTED = 6
    UNKNOWN = 7
    BLOCKED = 8

    @property
    def text(self) -> str:
        return "pending" if self is State.DELAYED else self.name.lower()


ENDED = (State.SENT, State.DEAD, State.ABORTED)
STATE_NAMES: dict[str, tuple[State, ...]] = {
    text: tuple(state for state in State if state.text == text) for text in dict.fromkeys(state.text for state in State)
}


class Doubt(IntEnum):
    """Where the finding out about an unknown message stands. Numbers are what the database holds."""

    OPEN = 0  # a reconciler may take it
    HELD = 1
    LATER = 2  # undecided so far: it is looked at again when it is due
    OPERATOR = 3  # the budget is spent: a person must decide


class Check(IntEnum):
    """Where the finding out about a prepared message stands. Numbers are what the database holds."""

    OPEN = 0  # its time has not passed, or its producer is asked
    OPERATOR = 1  # nobody can be asked, or nothing came of it: a person must decide


class Decision(StrEnum):
    """What a producer says of a prepared message. Values are kinds of events too."""

    CONFIRMED = "confirmed"
    ABORTED = "aborted"


class Kind(StrEnum):
    """Kinds of events. `recorded`, `claimed` and `sent` are told by the message's own row, the others are stored."""

    RECORDED = "recorded"
    CLAIMED = "claimed"
    SENT = "sent"
    RETRIED = "retried"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    RELEASED = "released"
    ABANDONED = "abandoned"
    DEAD = "dead"
    LATE_ANSWER = "late_answer"
    REQUEUED = "requeued"
    RECONCILED = "reconciled"
    CONFIRMED = "confirmed"
    ABORTED = "aborted"
    UNDECIDED = "undecided"


class Outcome(StrEnum):
    """How a holder settles."""

    SENT = "sent"
    RETRY = "retry"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    RELEASED = "released"


class ReleaseReason(StrEnum):
    SHUTDOWN = "shutdown"
    THROTTLED = "throttled"
    UNSUPPORTED = "unsupported"
    OTHER = "other"


class Verdict(StrEnum):
    SENT = "sent"
    RETRY = "retry"
    DEAD = "dead"
