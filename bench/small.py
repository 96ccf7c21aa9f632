"""Locks, idempotency and the cache: pairs against what one bare connection does with their statements, fresh reads against the
bare framework in the same run, and a stampede on one key.
"""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from app.access import ANONYMOUS, Caller
from app.clock import micros
from app.primitives.idempotency.model import Check, OnOwnerLost, Settle, State, fingerprint_of, key_digest, said
from app.primitives.idempotency.ops.check import check
from app.primitives.idempotency.ops.settle import settle
from app.primitives.idempotency.tables import keys, results
from app.primitives.locks.model import Acquire, Hold, digest_of, place_of
from app.primitives.locks.ops.acquire import acquire
from app.primitives.locks.ops.held import release
from app.primitives.locks.tables import locks
from bench.cases import Pace
from bench.report import Figure
from bench.stand import Stand
from bench.tape import Floor, Statement, timed_units
from bench.wire import Wire, first_ready
from tests.e2e.process import ROOT, eventually

SCRIPT = Path(__file__).with_name("pairs.lua")
CLIENTS = 64
LEAST_OF_FLOOR, LEAST_OF_ECHO, ENOUGH_READS = 1.5, 0.5, 5_000
CALLERS, FILL_SECONDS, MOST_LATE = 200, 0.1, 50
DRAIN_SECONDS = 1.0
ENTRY = "/v1/cache/bench/customer%2F9"
CALLER = Caller(ANONYMOUS, "bench-request-0000000000")
RESULT = b'{"order":98127364}'


def all_small(stand: Stand, floor: Floor, pace: Pace) -> Iterator[Figure]:
    yield _pairs(stand, floor, pace, "lock", "acquire + release", _lock_pair, (locks,))
    yield _pairs(stand, floor, pace, "idempotency", "check + complete", _key_pair, (keys, results))
    yield from _reads(stand, pace)
    yield _stampede(stand)


# -- pairs -----------------------------------------------------------------------------------------------------------------


def _pairs(
    stand: Stand, floor: Floor, pace: Pace, mode: str, name: str, pair: Callable[[Floor, int], Any], tables: Any
) -> Figure:
    units = [one for number in range(pace.floor_units[1]) for one in pair(floor, number)]
    before = _floor_rate(floor, units, tables)
    counts = _load(stand.urls[0], pace, mode=mode)
    after = _floor_rate(floor, units, tables)
    bar, rate = (before + after) / 2, counts["window"] / pace.measure_seconds
    return Figure(
        f"{mode}: {name}, {CLIENTS} clients", rate, "pairs/s", bar, "its two writes", rate / bar,
        f">= {LEAST_OF_FLOOR}", rate / bar >= LEAST_OF_FLOOR, counts["p50_ms"], counts["p99_ms"], wrong=_wrong(counts),
    )  # fmt: skip


def _floor_rate(floor: Floor, units: list[list[Statement]], tables: Any) -> float:
    """Pairs per second of one bare connection, on empty tables."""
    with floor.tables.engine.connect() as connection:
        for table in tables:
            connection.execute(table.delete())
    return len(units) / 2 / timed_units(floor.connection, units)


def _lock_pair(floor: Floor, number: int) -> Iterator[list[Statement]]:
    name = f"pair-{number}"
    digest = digest_of(name)
    place = place_of(CALLER, None, digest)
    wanted = Acquire(name, digest, "bench", micros(600), 0, CALLER, None, place, number + 1)
    statements, held = floor.kept(acquire, wanted)
    yield statements
    yield floor.kept(release, Hold(name, digest, held.token))[0]


def _key_pair(floor: Floor, number: int) -> Iterator[list[Statement]]:
    key = f"pair-{number}"
    digest, fingerprint = key_digest("bench", key), fingerprint_of("bench")
    lost = OnOwnerLost.RECONCILE
    wanted = Check(digest, "bench", fingerprint, micros(60), micros(86_400), lost, CALLER, None)
    statements, owned = floor.kept(check, wanted)
    yield statements
    told = said(State.COMPLETED, RESULT, None, None)
    yield floor.kept(settle, Settle("bench", key, digest, owned.token, State.COMPLETED, told, RESULT))[0]


# -- reads -----------------------------------------------------------------------------------------------------------------


def _reads(stand: Stand, pace: Pace) -> Iterator[Figure]:
    wire = Wire(stand.urls[0])
    wire.call(ENTRY, {"value": {"plan": "pro", "seats": 12}, "ttl_seconds": 86_400}, method="PUT")
    wire.close()
    with _echo() as url:
        before = _load(url, pace, mode="get", path="/echo/bench/customer", idle="/echo/bench/idle")
        counts = _load(stand.urls[0], pace, mode="get", path=ENTRY)
        after = _load(url, pace, mode="get", path="/echo/bench/customer", idle="/echo/bench/idle")
    bar = (before["window"] + after["window"]) / 2 / pace.measure_seconds
    rate = counts["window"] / pace.measure_seconds
    yield Figure(
        f"cache: fresh reads, {CLIENTS} clients", rate, "reads/s", bar, "the bare framework's echo", rate / bar,
        f">= {LEAST_OF_ECHO} or {ENOUGH_READS}/s", rate / bar >= LEAST_OF_ECHO or rate >= ENOUGH_READS,
        counts["p50_ms"], counts["p99_ms"], wrong=_wrong(counts),
    )  # fmt: skip


@contextmanager
def _echo() -> Iterator[str]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "bench.echo:app",
        "--port",
        str(port),
        "--log-level",
        "error",
        "--no-access-log",
    ]
    running = subprocess.Popen(command, cwd=ROOT)

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/echo/a/b", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    try:
        eventually(answers, 30, "the bare framework answers")
        yield url
    finally:
        running.terminate()
        running.wait()


# -- a stampede ------------------------------------------------------------------------------------------------------------


def _stampede(stand: Stand) -> Figure:
    """From the filler's answer to the last caller's: what the service adds to the making of the value."""
    wires = [Wire(stand.urls[0]) for _ in range(CALLERS)]
    path = "/v1/cache/bench/missing"
    began = time.perf_counter()
    for wire in wires:
        wire.send(f"{path}/remember", {"wait_seconds": 30})
    answers: list[dict[str, Any]] = []
    waiting, filled = list(wires), 0.0
    while waiting:
        for wire in first_ready(waiting, 30):
            waiting.remove(wire)
            answers.append(told := wire.receive())
            if told["state"] == "fill":
                time.sleep(FILL_SECONDS)  # the work of the filler itself
                body = {"token": told["reservation"]["token"], "value": "made once", "ttl_seconds": 60}
                filled = time.perf_counter()
                Wire(stand.urls[0]).call(f"{path}/fill", body)
    late = (time.perf_counter() - filled) * 1000
    for wire in wires:
        wire.close()
    fills = sum(one["state"] == "fill" for one in answers)
    wrong = (
        "" if fills == 1 and sum(one["value"] == "made once" for one in answers) == CALLERS - 1 else f"{fills} fills"
    )
    return Figure(
        f"cache: {CALLERS} callers miss one key", late, "ms", target=f"<= {MOST_LATE}", good=late <= MOST_LATE, wrong=wrong,
        note=f"after the filler brought the value; {(time.perf_counter() - began) * 1000:.0f} ms in all, the making "
        f"{FILL_SECONDS * 1000:.0f} of them",
    )  # fmt: skip


# -- wrk -------------------------------------------------------------------------------------------------------------------


def _load(url: str, pace: Pace, *, mode: str, path: str = "/livez", idle: str = "/livez") -> dict[str, Any]:
    seconds = math.ceil(pace.warm_seconds + pace.measure_seconds + DRAIN_SECONDS)
    command = [
        "wrk", "-t1", f"-c{CLIENTS}", f"-d{seconds}s", "--timeout", "30s", "-s", str(SCRIPT), url, "--",
        f"mode={mode}", f"path={path}", f"idle={idle}", f"warm={pace.warm_seconds}", f"measure={pace.measure_seconds}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        if line.startswith("BENCH "):
            counts: dict[str, Any] = json.loads(line.removeprefix("BENCH "), strict=False)
            return counts
    raise RuntimeError(f"wrk gave no counts:\n{done.stdout}\n{done.stderr}")


def _wrong(counts: dict[str, Any]) -> str:
    found = []
    if counts["refused"]:
        found.append(f"{counts['refused']} refused, first: {counts['first_refusal']}")
    if counts["socket_errors"]:
        found.append(f"{counts['socket_errors']} socket errors")
    if counts["sent"] != counts["got"]:
        found.append(f"{counts['sent']} sent, {counts['got']} answered")
    return "; ".join(found)
