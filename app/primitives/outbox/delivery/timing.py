"""How long calls took: plain numbers, for a histogram of `/metrics`."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

from app.clock import MICROS

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)  # seconds


@dataclass(slots=True)
class Timing:
    """`counts`: how many took at most as long as each bucket says, the last: longer. `micros`: all together."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    micros: int = 0

    def add(self, micros: int) -> None:
        self.counts[bisect_left(BUCKETS, micros / MICROS)] += 1
        self.micros += micros

    def cumulated(self) -> list[int]:
        return list(accumulate(self.counts))
