"""Claim latency against backlog: by one connection, with ever more work waiting and as much delayed and ended beside it."""

from __future__ import annotations

from collections.abc import Iterator

from app.primitives.jobs.model import State
from bench import seed
from bench.cases import Pace
from bench.report import Figure
from bench.stand import Stand
from bench.wire import Wire, percentile, timed

QUEUE = "backlog"
CLAIM = {"queues": [QUEUE], "worker": "bench", "lease_seconds": 3600}
WARM_CLAIMS = 30
MOST_RATIO = 1.5


def against_backlog(stand: Stand, pace: Pace) -> Iterator[Figure]:
    """The first figure is with the least work and nothing beside it; the others are held against it."""
    wire = Wire(stand.urls[0])
    base: float | None = None
    for waiting in pace.backlogs:
        wire.call("/v1/jobs", {"queue": QUEUE, "type": "bench.work", "payload": {}})
        stand.tables.empty()
        beside = pace.beside if base is not None else 0
        seed.fill(stand.tables, QUEUE, {State.AVAILABLE: waiting, State.SCHEDULED: beside, State.SUCCEEDED: beside})
        took, wrong = _claims(wire, pace.claims)
        p50 = percentile(took, 0.5)
        base = base or p50
        yield Figure(
            f"claim of {waiting:,} waiting, {beside:,} delayed, {beside:,} ended", p50, "ms p50", base, "ms least backlog",
            p50 / base, f"<= {MOST_RATIO}", p50 / base <= MOST_RATIO, p50, percentile(took, 0.99), wrong=wrong,
        )  # fmt: skip
    wire.close()
    stand.tables.empty()


def _claims(wire: Wire, count: int) -> tuple[list[float], str]:
    answers = [timed(wire, "/v1/jobs/claim", CLAIM) for _ in range(WARM_CLAIMS + count)]
    ids = [job["id"] for _, answer in answers for job in answer["jobs"]]
    wrong = "" if len(set(ids)) == WARM_CLAIMS + count else f"{len(set(ids))} jobs by {WARM_CLAIMS + count} claims"
    if ids != sorted(ids):
        wrong += " out of order"
    return [milliseconds for milliseconds, _ in answers[WARM_CLAIMS:]], wrong
