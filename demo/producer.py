"""A producer: enqueues in batches. Each job has an idempotency key, so that a batch whose answer was lost may be sent again."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import httpx

QUEUE, TYPE = "demo.files", "file.measure"
BATCH = 200


def enqueue(http: httpx.Client, paths: Iterable[Path]) -> dict[str, Path]:
    """Enqueue one job for each file; gives job id -> path. Raises: RuntimeError if one was refused."""
    made: dict[str, Path] = {}
    waiting = iter(paths)
    while batch := list(itertools.islice(waiting, BATCH)):
        jobs = [
            {"queue": QUEUE, "type": TYPE, "payload": {"path": str(path)}, "idempotency_key": f"measure {path}"}
            for path in batch
        ]
        answer = http.post("/v1/jobs/batch", json={"jobs": jobs}).raise_for_status().json()
        for path, result in zip(batch, answer["results"], strict=True):
            if result["job"] is None:
                raise RuntimeError(f"{path} was refused: {result['problem']}")
            made[result["job"]["id"]] = path
    return made
