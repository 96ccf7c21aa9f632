"""A lease that a command on this host holds, kept alive by a thread, and what is known of when it ends.

What counts is what can be proven here: a renewal that was asked for at one moment holds for its length from that moment at
least, whatever the answer's way took. The clock is one that goes on while the machine sleeps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from app.cli.failure import CONFLICT, MISSING, CommandFailed

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
RENEWALS = 3  # in each length of the lease
LEAST_PAUSE_SECONDS = 0.2


def now() -> float:
    """Seconds on a clock that is never set, and that counts while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


@dataclass(slots=True)
class Lease:
    """`renew` asks the service once, and raises CommandFailed. `seconds`: its length; `since`: when it was asked for."""

    renew: Callable[[], object]
    seconds: float
    since: float
    on_lost: Callable[[], None] = lambda: None
    why: str = "the lease could not be renewed in time"
    lost: bool = False
    _until: float = field(init=False)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._until = self.since + self.seconds

    def seconds_left(self) -> float:
        """For how long it is still held for certain."""
        return self._until - now()

    def give_up(self, grace_seconds: float) -> None:
        """It is not to be relied on any more; whoever does has so long to end, and no longer than it lasts if it still does."""
        self._stop.set()
        self._until = now() + grace_seconds if self.lost else min(self._until, now() + grace_seconds)
        self.lost = True

    def start(self) -> None:
        """Renew from now on, in a thread of its own."""
        self._thread = threading.Thread(target=self._keep, name="tenure-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Renew no more. A renewal that is under way is waited for."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=self.seconds)

    def _keep(self) -> None:
        pause = self.seconds / RENEWALS
        while not self._stop.wait(pause):
            asked = now()
            try:
                self.renew()
            except CommandFailed as failed:
                if failed.exit_code in (CONFLICT, MISSING):
                    self.lost, self.why = True, f"the lease is lost ({failed.message})"
                    self.on_lost()
                    return
                pause = max(LEAST_PAUSE_SECONDS, pause / 2)  # sooner and sooner, but never in a storm
            else:
                if not self.lost:
                    self._until = asked + self.seconds
                pause = self.seconds / RENEWALS
