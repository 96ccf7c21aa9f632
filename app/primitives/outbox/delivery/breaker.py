"""A circuit breaker: a destination that fails again and again is left alone for a while, and then tried with one message."""

from __future__ import annotations

from dataclasses import dataclass

TRIPS_AFTER = 5  # failures in a row
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0


@dataclass(slots=True)
class Breaker:
    """Times are seconds of a steady clock. While it is open, messages stay where they are and spend no attempt."""

    failures: int = 0
    closed_at: float = 0.0  # from when on calls may begin

    def open_for(self, now: float) -> float:
        """Seconds until a call may begin; 0 if one may now."""
        return max(0.0, self.closed_at - now)

    @property
    def tripped(self) -> bool:
        return self.failures >= TRIPS_AFTER

    def succeeded(self) -> None:
        """The destination has answered, whatever it said of the message."""
        self.failures, self.closed_at = 0, 0.0

    def failed(self, now: float) -> None:
        """It could not be reached, or did not answer as it should."""
        self.failures += 1
        if self.tripped:
            pause = FIRST_PAUSE_SECONDS * 2.0 ** min(self.failures - TRIPS_AFTER, 16)
            self.closed_at = max(self.closed_at, now + min(pause, LONGEST_PAUSE_SECONDS))

    def asked_to_wait(self, now: float, seconds: float) -> None:
        """It said when it wants to be called again."""
        self.closed_at = max(self.closed_at, now + seconds)
