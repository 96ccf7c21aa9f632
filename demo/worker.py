"""A Tenure worker in Python that needs httpx alone. Copy it, and replace `work` and the names at its top.

    TENURE_URL=http://127.0.0.1:8080 TENURE_API_KEY=… python worker.py

It holds several jobs at once, keeps them with heartbeats, settles them with its next claim, repeats every call whose answer
was lost, and on SIGTERM settles what is done and gives the rest back.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
import uuid
from pathlib import Path
from typing import Any

import httpx

URL = os.environ.get("TENURE_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("TENURE_API_KEY")
NAME = f"python-{os.getpid()}"
QUEUE, TYPE = "demo.files", "file.measure"
LEASE_SECONDS = 5
LIMIT = 8

http = httpx.Client(base_url=URL, headers={"authorization": f"Bearer {KEY}"} if KEY else {}, timeout=60)
stopping = threading.Event()
held: dict[str, str] = {}  # job id -> token, of everything that is not settled yet


def work(payload: Any) -> Any:
    """The work itself: its result is any JSON value."""
    content = Path(payload["path"]).read_bytes()
    return {"sha256": hashlib.sha256(content).hexdigest(), "lines": content.count(b"\n"), "by": "python"}


def call(path: str, body: Any) -> Any:
    """POST until it is answered. Safe, because every call may be repeated: by its claim_id, or by its tokens."""
    while True:
        try:
            answer = http.post(path, json=body)
            if answer.status_code not in (429, 503):
                answer.raise_for_status()
                return answer.json()
        except httpx.TransportError as fault:
            print(f"{NAME}: {type(fault).__name__}, trying again", flush=True)
        threading.Event().wait(random.uniform(0.1, 1.0))


def keep_alive() -> None:
    """Extend what is held, three times in a lease. A job that is lost leaves `held`: somebody else may have it by now."""
    while not stopping.wait(LEASE_SECONDS / 3):
        items = [{"id": job, "token": token, "lease_seconds": LEASE_SECONDS} for job, token in held.copy().items()]
        if items:
            for result in call("/v1/jobs/heartbeats", {"items": items})["results"]:
                if result["status"] == 409:
                    held.pop(result["id"], None)


def attempt(job: dict[str, Any]) -> dict[str, Any]:
    """Work on one job and say how that ended."""
    done = {"id": job["id"], "token": job["reservation"]["token"]}
    try:
        return {**done, "outcome": "succeeded", "result": work(job["payload"])}
    except OSError as fault:  # reading may be repeated; for an effect that may have happened, say `unknown` instead
        return {**done, "outcome": "failed", "category": type(fault).__name__, "retry": True}


def settled(results: list[dict[str, Any]]) -> None:
    for result in results:
        held.pop(result["id"], None)
        if result["status"] != 200:
            print(f"{NAME}: {result['id']} was not settled: {result['problem']['code']}", flush=True)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    threading.Thread(target=keep_alive, daemon=True).start()
    done: list[dict[str, Any]] = []
    while not stopping.is_set():
        answer = call("/v1/jobs/claim", {
            "queues": [QUEUE], "handlers": [{"type": TYPE, "schema_versions": [1]}], "worker": NAME, "limit": LIMIT,
            "lease_seconds": LEASE_SECONDS, "wait_seconds": 5, "claim_id": str(uuid.uuid4()), "settlements": done,
        })  # fmt: skip
        settled(answer["settled"])
        held.update({job["id"]: job["reservation"]["token"] for job in answer["jobs"]})
        done = []
        for job in answer["jobs"]:
            if stopping.is_set():
                done.append({"id": job["id"], "token": held[job["id"]], "outcome": "released", "reason": "shutdown"})
            elif job["id"] in held:
                done.append(attempt(job))
    if done:
        settled(call("/v1/jobs/settlements", {"items": done})["results"])


if __name__ == "__main__":
    main()
