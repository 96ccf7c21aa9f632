"""Waiting: how soon work is picked up on an idle service, and what a thousand idle workers cost."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Iterator
from typing import Any

from bench.cases import Pace
from bench.report import Figure
from bench.stand import Gauge, Stand
from bench.wire import Wire, first_ready, percentile

IDLE_WORKERS = 1000
LONGEST_PAUSE = 0.2
CLAIM = {"queues": ["pickup"], "worker": "bench", "lease_seconds": 60, "wait_seconds": 30}
JOB = {"queue": "pickup", "type": "bench.work", "payload": {"order": 1}}


def pickup(stand: Stand, pace: Pace) -> Iterator[Figure]:
    """From the first byte of an enqueue to the last byte of the waiting claim's answer."""
    yield _pickup(stand, pace, stand.urls[0], "pickup, claim waits at the same process")
    if len(stand.urls) > 1:
        yield _pickup(stand, pace, stand.urls[1], "pickup, claim waits at the other process")


def _pickup(stand: Stand, pace: Pace, claim_url: str, name: str) -> Figure:
    producer, worker = Wire(stand.urls[0]), Wire(claim_url)
    producer.call("/v1/jobs", JOB)
    stand.tables.empty()
    picked: list[float] = []
    enqueued: list[float] = []
    for _ in range(pace.pickups):
        worker.send("/v1/jobs/claim", CLAIM)
        time.sleep(random.uniform(0.02, LONGEST_PAUSE))
        began = time.perf_counter()
        producer.send("/v1/jobs", JOB)
        answers: dict[Wire, Any] = {}
        while len(answers) < 2:
            for wire in first_ready([wire for wire in (producer, worker) if wire not in answers], 35):
                answers[wire] = wire.receive()
                (picked if wire is worker else enqueued).append((time.perf_counter() - began) * 1000)
        (job,) = answers[worker]["jobs"]
        worker.call(f"/v1/jobs/{job['id']}/complete", {"token": job["reservation"]["token"]})
    for wire in (producer, worker):
        wire.close()
    return Figure(
        name, percentile(picked, 0.5), "ms p50", p50_ms=percentile(picked, 0.5), p99_ms=percentile(picked, 0.99),
        note=f"{len(picked)} times; the enqueue alone is answered after {percentile(enqueued, 0.5):.2f} ms p50",
    )  # fmt: skip


def idle(stand: Stand, pace: Pace) -> Iterator[Figure]:
    """The service with nobody waiting, then with a thousand claims waiting; statements, threads, connections, memory."""
    _allow_files(IDLE_WORKERS * len(stand.urls) + 200)
    gauge = Gauge(stand.tables)
    yield _idle(stand, gauge, pace, "idle, nobody waits")
    body = {"queues": ["idle"], "worker": "bench", "wait_seconds": 30}
    first = Wire(stand.urls[0])
    first.call("/v1/jobs", {"queue": "idle", "type": "bench.work", "payload": {}})
    first.close()
    stand.tables.empty()
    wires = [Wire(stand.urls[place % len(stand.urls)]) for place in range(IDLE_WORKERS)]
    for wire in wires:
        wire.send("/v1/jobs/claim", body)
    time.sleep(2)  # each newcomer has had its first look at the queue
    yield _idle(stand, gauge, pace, f"idle, {IDLE_WORKERS} claims wait")
    for wire in wires:
        wire.close()
    gauge.close()


def _idle(stand: Stand, gauge: Gauge, pace: Pace, name: str) -> Figure:
    used, before = stand.use(), gauge.statements()
    time.sleep(pace.idle_seconds)
    use, after = stand.use(), gauge.statements()
    now, most = stand.memory_mib()
    cpu = 100 * (use.service_cpu - used.service_cpu) / pace.idle_seconds
    note = f"{stand.threads()} threads, {gauge.connections()} connections, {now:.0f} MiB (highest {most:.0f}), {cpu:.1f} % CPU"
    if before is None or after is None:  # an engine that does not count its statements
        return Figure(name, cpu, "% CPU", note=note)
    return Figure(name, (after - before - 1) / pace.idle_seconds, "statements/s", note=note)


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard) if hard > 0 else count, hard))
