"""The outbox: worked off by pulling, against jobs in the same run; beside a dead destination; and how soon a row is picked up.

Everything by one connection, one request after the other.
"""

from __future__ import annotations

import json
import queue
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sqlalchemy import insert

from app.primitives.outbox.tables import outbox
from bench.cases import Pace
from bench.report import Figure
from bench.stand import Stand
from bench.wire import Wire, percentile, timed

DESTINATION, DEAD, RECEIVED, TYPE = "bench", "bench-dead", "bench-received", "bench.work"
BATCH = 100
MOST_BESIDE, LEAST_OF_JOBS, LONGEST_PICKUP = 1.2, 0.8, 300
LONGEST_PAUSE = 0.3
PASSES = 3


def all_outbox(stand: Stand, pace: Pace) -> Iterator[Figure]:
    wire = Wire(stand.urls[0])
    for name in (DESTINATION, DEAD):
        wire.call(f"/v1/outbox/destinations/{name}", {}, method="PUT")
    yield _pulled(stand, wire, pace)
    yield _beside(stand, wire, pace)
    yield _picked_up(stand, wire, pace)
    yield _delivered(stand, wire, pace)
    wire.close()
    stand.tables.empty()


# -- pull ------------------------------------------------------------------------------------------------------------------


def _pulled(stand: Stand, wire: Wire, pace: Pace) -> Figure:
    """Whole lives by 100: recorded, claimed with the results of the round before, acknowledged."""
    jobs, messages, wrong = [], [], ""
    for _ in range(PASSES):
        stand.tables.empty()
        jobs.append(_rate(lambda: _job_rounds(wire, pace), pace))
        stand.tables.empty()
        messages.append(_rate(lambda: _message_rounds(wire, pace), pace))
    left = {key: count for key, count in wire.call("/v1/outbox/stats", None, method="GET")["totals"].items() if count}
    if left != {"sent": pace.drained}:
        wrong = f"left behind: {left}"
    rate, base = max(messages), max(jobs)
    return Figure(
        f"{pace.drained:,} messages by {BATCH}, whole lives", rate, "messages/s", base, "jobs the same way", rate / base,
        f">= {LEAST_OF_JOBS}", rate / base >= LEAST_OF_JOBS, wrong=wrong,
    )  # fmt: skip


def _rate(rounds: Any, pace: Pace) -> float:
    began = time.perf_counter()
    rounds()
    return pace.drained / (time.perf_counter() - began)


def _job_rounds(wire: Wire, pace: Pace) -> None:
    _fill_jobs(wire, pace.drained)
    claim: dict[str, Any] = {"queues": [DESTINATION], "worker": "bench", "limit": BATCH, "lease_seconds": 600}
    settlements: list[dict[str, Any]] = []
    while jobs := wire.call("/v1/jobs/claim", {**claim, "settlements": settlements})["jobs"]:
        settlements = [{"id": one["id"], "token": one["reservation"]["token"], "outcome": "succeeded"} for one in jobs]


def _fill_jobs(wire: Wire, count: int) -> None:
    job = {"queue": DESTINATION, "type": TYPE, "payload": {}}
    for start in range(0, count, BATCH):
        keyed = [{**job, "idempotency_key": f"b{start + place}"} for place in range(BATCH)]
        wire.call("/v1/jobs/batch", {"jobs": keyed})


def _message_rounds(wire: Wire, pace: Pace) -> None:
    _fill(wire, DESTINATION, pace.drained)
    settlements: list[dict[str, Any]] = []
    while messages := wire.call("/v1/outbox/claim", {**_claim(BATCH), "settlements": settlements})["messages"]:
        settlements = [{"id": one["id"], "token": one["reservation"]["token"], "outcome": "sent"} for one in messages]


def _claim(limit: int) -> dict[str, Any]:
    return {"destinations": [DESTINATION], "worker": "bench", "limit": limit, "lease_seconds": 600}


def _fill(wire: Wire, destination: str, count: int) -> None:
    for start in range(0, count, BATCH):
        wire.call(
            "/v1/outbox/messages/batch",
            {
                "messages": [
                    {
                        "message_key": f"{destination}-{start + place}",
                        "type": TYPE,
                        "destination": destination,
                        "payload": {},
                    }
                    for place in range(min(BATCH, count - start))
                ]
            },
        )


# -- beside a dead destination ---------------------------------------------------------------------------------------------


def _beside(stand: Stand, wire: Wire, pace: Pace) -> Figure:
    """Record, claim and acknowledge for one destination, with and without so many messages of one that nobody serves."""
    stand.tables.empty()
    alone = _lives(wire, pace, "a")
    with stand.tables.engine.connect() as connection:
        rows = [
            {"message_key": f"dead-{number}", "type": TYPE, "destination": DEAD, "payload": "{}"}
            for number in range(pace.beside)
        ]
        for start in range(0, len(rows), 10_000):
            connection.execute(insert(outbox), rows[start : start + 10_000])
    wrong = _until_adopted(wire, pace)
    beside = _lives(wire, pace, "b")
    p50, base = percentile(beside, 0.5), percentile(alone, 0.5)
    return Figure(
        f"a message's life beside {pace.beside:,} of a dead destination", p50, "ms p50", base, "ms without them", p50 / base,
        f"<= {MOST_BESIDE}", p50 / base <= MOST_BESIDE, p50, percentile(beside, 0.99), wrong=wrong,
    )  # fmt: skip


def _until_adopted(wire: Wire, pace: Pace) -> str:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        if wire.call("/v1/outbox/stats", None, method="GET")["totals"]["pending"] >= pace.beside:
            return ""
        time.sleep(0.5)
    return "not all rows were adopted"


def _lives(wire: Wire, pace: Pace, run: str) -> list[float]:
    took: list[float] = []
    for number in range(pace.claims):
        message = {"message_key": f"{run}-{number}", "type": TYPE, "destination": DESTINATION, "payload": {}}
        recorded, _ = timed(wire, "/v1/outbox/messages", message)
        claimed, answer = timed(wire, "/v1/outbox/claim", _claim(1))
        (mine,) = answer["messages"]
        sent, _ = timed(wire, f"/v1/outbox/messages/{mine['id']}/sent", {"token": mine["reservation"]["token"]})
        took.append(recorded + claimed + sent)
    return took


# -- from the INSERT to the receiver ---------------------------------------------------------------------------------------


def _picked_up(stand: Stand, wire: Wire, pace: Pace) -> Figure:
    """From the producer's COMMIT of a plain INSERT to the last byte of the waiting claim's answer, on an idle service."""
    stand.tables.empty()
    picked: list[float] = []
    with stand.tables.engine.connect() as connection:
        for number in range(pace.pickups):
            wire.send("/v1/outbox/claim", {**_claim(1), "wait_seconds": 30})
            time.sleep(random.uniform(0.05, LONGEST_PAUSE))
            row = {"message_key": f"p-{number}", "type": TYPE, "destination": DESTINATION, "payload": json.dumps({})}
            connection.execute(insert(outbox), row)
            began = time.perf_counter()
            (mine,) = wire.receive()["messages"]
            picked.append((time.perf_counter() - began) * 1000)
            wire.call(f"/v1/outbox/messages/{mine['id']}/sent", {"token": mine["reservation"]["token"]})
    p50 = percentile(picked, 0.5)
    return Figure(
        "from an INSERT by SQL to a waiting claim", p50, "ms p50", float(LONGEST_PICKUP), "ms", p50 / LONGEST_PICKUP, "<= 1",
        p50 <= LONGEST_PICKUP, p50, percentile(picked, 0.99),
    )  # fmt: skip


def _delivered(stand: Stand, wire: Wire, pace: Pace) -> Figure:
    """From the producer's COMMIT of a plain INSERT to the request at a receiver that the service itself delivers to."""
    stand.tables.empty()
    picked: list[float] = []
    with _receiver() as (port, arrived), stand.tables.engine.connect() as connection:
        delivery = {"mode": "http", "url": f"http://127.0.0.1:{port}/"}
        wire.call(f"/v1/outbox/destinations/{RECEIVED}", {"delivery": delivery}, method="PUT")
        time.sleep(2)  # a courier begins within a second
        for number in range(pace.pickups):
            time.sleep(random.uniform(0.05, LONGEST_PAUSE))
            row = {"message_key": f"r-{number}", "type": TYPE, "destination": RECEIVED, "payload": "{}"}
            connection.execute(insert(outbox), row)
            began = time.perf_counter()
            picked.append((arrived.get(timeout=30) - began) * 1000)
        wire.call(f"/v1/outbox/destinations/{RECEIVED}", {}, method="PUT")
    p50 = percentile(picked, 0.5)
    return Figure(
        "from an INSERT by SQL to a receiver", p50, "ms p50", float(LONGEST_PICKUP), "ms", p50 / LONGEST_PICKUP, "<= 1",
        p50 <= LONGEST_PICKUP, p50, percentile(picked, 0.99),
    )  # fmt: skip


@contextmanager
def _receiver() -> Iterator[tuple[int, queue.SimpleQueue[float]]]:
    """An HTTP server that takes everything and tells when."""
    arrived: queue.SimpleQueue[float] = queue.SimpleQueue()

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            arrived.put(time.perf_counter())
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], arrived
    finally:
        server.shutdown()
        server.server_close()
