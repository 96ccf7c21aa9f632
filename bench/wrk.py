"""Runs wrk with load.lua, against one process or several at once, and gives its counts."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("load.lua")
DRAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """What to send. `clients` are connections, `batch` jobs per request; see load.lua for `mode`."""

    mode: str
    queue: str
    clients: int
    batch: int = 1
    warm_seconds: float = 1.0
    measure_seconds: float = 4.0


@dataclass(frozen=True, slots=True)
class Counts:
    """What came of it. `window_*` count inside the measured seconds, the others over the whole run."""

    sent: int
    got: int
    acked: int
    claimed: int
    settled: int
    empty: int
    refused: int
    window_acked: int
    window_settled: int
    window_requests: int
    socket_errors: int
    p50_ms: float
    p99_ms: float
    first_refusal: str


def missing() -> str | None:
    """What to tell somebody who has no wrk."""
    return None if shutil.which("wrk") else "wrk is not on this machine; Debian and Ubuntu have it: apt-get install wrk"


def run(load: Load, urls: Sequence[str]) -> Counts:
    """Send `load`, its clients spread over `urls`, and wait for the end."""
    shares = [load.clients // len(urls) + (place < load.clients % len(urls)) for place in range(len(urls))]
    running = [
        subprocess.Popen(_command(load, share, url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for share, url in zip(shares, urls, strict=True)
        if share
    ]
    return _sum([_counts(process) for process in running])


def _command(load: Load, clients: int, url: str) -> list[str]:
    seconds = math.ceil(load.warm_seconds + load.measure_seconds + DRAIN_SECONDS)
    return [
        "wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "30s", "-s", str(SCRIPT), url, "--",
        f"mode={load.mode}", f"queue={load.queue}", f"batch={load.batch}", f"warm={load.warm_seconds}",
        f"measure={load.measure_seconds}",
    ]  # fmt: skip


def _counts(process: subprocess.Popen[str]) -> Counts:
    output, errors = process.communicate()
    for line in output.splitlines():
        if line.startswith("BENCH "):
            return Counts(**json.loads(line.removeprefix("BENCH "), strict=False))
    raise RuntimeError(f"wrk gave no counts:\n{output}\n{errors}")


def _sum(parts: Sequence[Counts]) -> Counts:
    if len(parts) == 1:
        return parts[0]
    added = {
        name: sum(getattr(part, name) for part in parts)
        for name in Counts.__dataclass_fields__
        if name not in ("p50_ms", "p99_ms", "first_refusal")
    }
    refusal = next((part.first_refusal for part in parts if part.first_refusal), "")
    worst = {name: max(getattr(part, name) for part in parts) for name in ("p50_ms", "p99_ms")}
    return Counts(**added, **worst, first_refusal=refusal)
