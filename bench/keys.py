"""Keys: what an enqueue with one costs, other work beside a long line, and a line worked off in its order.

Everything by one connection, one request after the other; each figure is held against the same without a key in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.cases import Pace
from bench.report import Figure
from bench.stand import Stand
from bench.wire import Wire, percentile, timed

QUEUE, OTHER, BATCH = "keys", "keys-other", 1000
JOB = {"queue": QUEUE, "type": "bench.work", "payload": {}}
KEY = {"concurrency": {"key": "one", "limit": 1}}
MOST_BESIDE = 1.5
PASSES = 2


def all_keys(stand: Stand, pace: Pace) -> Iterator[Figure]:
    wire = Wire(stand.urls[0])
    for queue in (QUEUE, OTHER):
        wire.call("/v1/jobs", {**JOB, "queue": queue})
    yield from _enqueues(stand, wire, pace)
    yield _beside(stand, wire, pace)
    yield _line(stand, wire, pace)
    wire.close()
    stand.tables.empty()


# -- enqueue ---------------------------------------------------------------------------------------------------------------


def _enqueues(stand: Stand, wire: Wire, pace: Pace) -> Iterator[Figure]:
    plain = _enqueue(stand, wire, pace, lambda _: {})
    kinds: dict[str, Callable[[int], dict[str, Any]]] = {
        "a fresh unique key": lambda number: {"unique": {"key": f"k{number}"}},
        "a unique key that is held": lambda _: {"unique": {"key": "held"}},
        "a fresh concurrency key": lambda number: {"concurrency": {"key": f"k{number}", "limit": 1}},
        "a concurrency key with a line": lambda _: KEY,
        "a debounce key, put off": lambda _: {"debounce": {"key": "d", "delay_seconds": 3600}},
    }
    for name, body in kinds.items():
        took = _enqueue(stand, wire, pace, body)
        p50, base = percentile(took, 0.5), percentile(plain, 0.5)
        yield Figure(
            f"enqueue with {name}", p50, "ms p50", base, "ms without a key", p50 / base, "", None, p50,
            percentile(took, 0.99),
        )  # fmt: skip


def _enqueue(stand: Stand, wire: Wire, pace: Pace, body: Callable[[int], dict[str, Any]]) -> list[float]:
    stand.tables.empty()
    return [timed(wire, "/v1/jobs", {**JOB, **body(number)})[0] for number in range(pace.claims)]


# -- claim -----------------------------------------------------------------------------------------------------------------


def _beside(stand: Stand, wire: Wire, pace: Pace) -> Figure:
    """Claims of one type's other work, with and without so many blocked jobs of the same flow."""
    alone, wrong = _claims(stand, wire, pace, 0)
    beside, also = _claims(stand, wire, pace, pace.keyed)
    p50, base = percentile(beside, 0.5), percentile(alone, 0.5)
    return Figure(
        f"claim of other work beside {pace.keyed:,} blocked", p50, "ms p50", base, "ms without them", p50 / base,
        f"<= {MOST_BESIDE}", p50 / base <= MOST_BESIDE, p50, percentile(beside, 0.99), wrong=wrong + also,
    )  # fmt: skip


def _claims(stand: Stand, wire: Wire, pace: Pace, blocked: int) -> tuple[list[float], str]:
    stand.tables.empty()
    _fill(wire, blocked, KEY)
    if blocked:  # the one that holds the slot is out of the way
        wire.call("/v1/jobs/claim", {"queues": [QUEUE], "worker": "bench", "lease_seconds": 3600})
    wanted = set(_fill(wire, 2 * pace.claims, {}))
    claim = {"queues": [QUEUE], "worker": "bench", "lease_seconds": 3600}
    answers = [timed(wire, "/v1/jobs/claim", claim) for _ in range(2 * pace.claims)]
    got = {job["id"] for _, answer in answers for job in answer["jobs"]}
    return [
        took for took, _ in answers[pace.claims :]
    ], "" if got == wanted else "not all of the other work was given out"


# -- a line ----------------------------------------------------------------------------------------------------------------


def _line(stand: Stand, wire: Wire, pace: Pace) -> Figure:
    """One worker, one call a round: the result of one job and the claim of the next."""
    rates: dict[str, list[float]] = {"plain": [], "keyed": []}
    wrong = ""
    for _ in range(PASSES):
        for name, body in (("plain", {}), ("keyed", KEY)):
            rate, fault = _drain(stand, wire, pace, body)
            rates[name].append(rate)
            wrong = wrong or fault
    keyed, plain = (sum(rates[name]) / PASSES for name in ("keyed", "plain"))
    return Figure(
        f"{pace.drained:,} of a line of {pace.keyed:,} at limit 1, one worker", keyed, "jobs/s", plain, "without a key",
        keyed / plain, wrong=wrong,
    )  # fmt: skip


def _drain(stand: Stand, wire: Wire, pace: Pace, body: dict[str, Any]) -> tuple[float, str]:
    stand.tables.empty()
    ids = _fill(wire, pace.keyed, body)
    claim: dict[str, Any] = {"queues": [QUEUE], "worker": "bench", "lease_seconds": 3600}
    order: list[str] = []
    began = time.perf_counter()
    settlements: list[dict[str, Any]] = []
    while len(order) < pace.drained:
        jobs = wire.call("/v1/jobs/claim", {**claim, "settlements": settlements})["jobs"]
        if not jobs:
            return 0.0, f"the line stopped after {len(order)}"
        order += [job["id"] for job in jobs]
        settlements = [{"id": job["id"], "token": job["reservation"]["token"], "outcome": "succeeded"} for job in jobs]
    rate = len(order) / (time.perf_counter() - began)
    return rate, "" if order == ids[: len(order)] else "out of order"


def _fill(wire: Wire, count: int, body: dict[str, Any]) -> list[str]:
    """Enqueue so many jobs; their ids in order."""
    ids: list[str] = []
    for start in range(0, count, BATCH):
        batch = [{**JOB, **body}] * min(BATCH, count - start)
        ids += [one["job"]["id"] for one in wire.call("/v1/jobs/batch", {"jobs": batch})["results"]]
    return ids
