"""Producers as they should be: every job has an idempotency key, and a call without an answer is sent again.

What was acknowledged goes to a file with fsync before the next call, so that it outlives whatever is killed.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.process import eventually

QUEUE = "load"
LAST_SECONDS = 60.0


class Producers:
    """Some threads that enqueue one job after the other until `stop`."""

    def __init__(self, urls: Sequence[str], acks: Path, threads: int) -> None:
        self.faults: list[str] = []
        self.unanswered = 0
        self._urls = itertools.cycle(urls)
        self._acks = acks.open("ab")
        self._path = acks
        self._guard = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._produce, args=(number,)) for number in range(threads)]
        self._count = 0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let each thread bring its last job home, and end it. Twice is once."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(LAST_SECONDS)
            assert not thread.is_alive(), "a producer got no answer until the end"
        self._acks.close()

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self._stopping.is_set() and not any(thread.is_alive() for thread in self._threads)

    @property
    def count(self) -> int:
        """How many jobs were acknowledged so far."""
        return self._count

    def go_on(self, jobs: int, seconds: float = 60.0) -> None:
        """Wait until so many more jobs are acknowledged."""
        enough = self._count + jobs
        eventually(lambda: self._count >= enough, seconds, f"{jobs} more jobs are acknowledged")

    def acknowledged(self) -> dict[str, str]:
        """Key -> job id, from the file."""
        lines = self._path.read_text().splitlines()
        acknowledged = dict(line.split(" ") for line in lines)
        assert len(acknowledged) == len(lines), "each key is acknowledged once"
        return acknowledged

    def _produce(self, number: int) -> None:
        with httpx.Client(trust_env=False, timeout=30) as http:
            for serial in itertools.count():
                if self._stopping.is_set():
                    return
                key = f"{number}-{serial}"
                job_id = self._enqueue(http, key)
                if job_id is None:
                    return
                with self._guard:
                    self._acks.write(f"{key} {job_id}\n".encode())
                    self._acks.flush()
                    os.fsync(self._acks.fileno())
                    self._count += 1

    def _enqueue(self, http: httpx.Client, key: str) -> str | None:
        body: dict[str, Any] = {"queue": QUEUE, "type": "load.work", "payload": {"key": key}, "idempotency_key": key}
        pause = threading.Event()
        while True:
            url = next(self._urls)
            try:
                answer = http.post(f"{url}/v1/jobs", json=body)
            except httpx.TransportError:
                self.unanswered += 1
                pause.wait(0.05)
                continue
            if answer.status_code in (200, 201):
                return str(answer.json()["id"])
            if answer.status_code != 503:
                self.faults.append(f"{answer.status_code} {answer.text}")
                return None
            pause.wait(0.05)


def listed(url: str, **filters: str) -> list[dict[str, Any]]:
    """Every job that the list gives, page by page."""
    jobs: list[dict[str, Any]] = []
    cursor: str | None = None
    with httpx.Client(base_url=url, trust_env=False, timeout=40) as http:
        while True:
            params = {"limit": "500", **filters, **({"cursor": cursor} if cursor else {})}
            page = http.get("/v1/jobs", params=params).raise_for_status().json()
            jobs += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return jobs


def assert_kept(producers: Producers, url: str) -> None:
    """Every acknowledged job is there, none twice, and none that nobody asked for."""
    assert producers.faults == []
    acknowledged = producers.acknowledged()
    there = [job["id"] for job in listed(url, queue=QUEUE)]
    assert len(there) == len(set(there))
    assert set(acknowledged.values()) == set(there)
    assert len(acknowledged) == len(there)
