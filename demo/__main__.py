"""`python -m demo`: runs the whole demonstration and exits with 0 only if every job succeeded exactly once."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx

from demo import producer
from tests.e2e.process import ServiceProcess, eventually, run_tenure

HERE = Path(__file__).parent
LIBRARY = Path(sysconfig.get_path("stdlib"))
MOST_SECONDS = 120.0
SETTINGS = {"jobs_backoff_seconds": "[0.2]", "log_level": "warning"}  # a killed worker's jobs run again soon


@dataclass(slots=True)
class Keys:
    """One API key for each part, with no more than that part may do."""

    admin: str
    producer: str = ""
    worker: str = ""
    operator: str = ""


@dataclass(slots=True)
class Workers:
    """Worker processes, by what they run."""

    url: str
    key: str
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "TENURE_URL": self.url, "TENURE_API_KEY": self.key}
        self.running.append(subprocess.Popen(command, env=environment, stdout=sys.stderr))
        return self.running[-1]

    def end(self) -> list[int]:
        """SIGTERM to all, and their exit codes."""
        for worker in self.running:
            worker.terminate()
        return [worker.wait(30) for worker in self.running]

    def close(self) -> None:
        for worker in self.running:
            if worker.poll() is None:
                worker.kill()
                worker.wait()


@click.command()
@click.option("--database-url", help="An empty database; else a temporary SQLite file.")
@click.option("--files", "most", type=int, default=5000, show_default=True, help="At most so many files.")
def main(database_url: str | None, most: int) -> None:
    """Hash the standard library's Python files with workers in two languages, kill one of them, and compare."""
    began = time.monotonic()
    paths = [path for path in sorted(LIBRARY.rglob("*.py")) if "site-packages" not in path.parts][:most]
    with ExitStack() as stack:
        if database_url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tenure-demo-"))
            database_url = f"sqlite:///{folder}/tenure.db"
        keys = _first_key(database_url)
        service = stack.enter_context(ServiceProcess(database_url, **SETTINGS))
        _other_keys(service.url, keys)
        say(f"Tenure serves on {service.url}")
        with _client(service.url, keys.producer) as http:
            made = producer.enqueue(http, paths)
        say(f"{len(made)} jobs are enqueued, one for each .py file of the standard library")
        operator = stack.enter_context(_client(service.url, keys.operator))
        workers = Workers(service.url, keys.worker)
        stack.callback(workers.close)
        _run(operator, workers, len(made))
        good = _compare(operator, made)
    say(f"{time.monotonic() - began:.1f} seconds in all")
    sys.exit(0 if good else 1)


def say(line: str) -> None:
    print(line, flush=True)


def _client(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60, trust_env=False)


def _first_key(database_url: str) -> Keys:
    """The first key is made on the database itself, before the service starts."""
    run_tenure("migrate", database_url=database_url)
    made = run_tenure("keys", "create", "--direct", "--name", "demo", "--role", "admin", database_url=database_url)
    if made.returncode:
        raise click.ClickException(made.stderr)
    return Keys(made.stdout.strip())


def _other_keys(url: str, keys: Keys) -> None:
    with _client(url, keys.admin) as http:
        for role in ("producer", "worker", "operator"):
            body = {"name": f"demo {role}", "roles": [role], "patterns": ["demo.*"]}
            setattr(keys, role, http.post("/v1/api-keys", json=body).raise_for_status().json()["key"])


def _run(operator: httpx.Client, workers: Workers, count: int) -> None:
    """Work all jobs off. One worker is killed when a fifth is done, while it holds jobs; another one takes its place."""
    python = (sys.executable, str(HERE / "worker.py"))
    node = ("node", str(HERE / "worker.mjs")) if shutil.which("node") else python
    if node is python:
        say("There is NO node on this machine: the second worker is a Python one, too")
    victim = workers.start(*python)
    workers.start(*node)
    eventually(lambda: _states(operator)["succeeded"] >= count // 5, MOST_SECONDS, "a fifth of the jobs is done")
    held = eventually(lambda: _frozen_with_jobs(operator, victim), MOST_SECONDS, "the worker holds jobs")
    victim.kill()
    victim.wait()
    workers.running.remove(victim)
    say(f"Killed the Python worker with SIGKILL while it held {held} jobs; started another one")
    workers.start(*python)
    eventually(lambda: _states(operator)["succeeded"] == count, MOST_SECONDS, "every job succeeded")
    say(f"Workers ended with {workers.end()} on SIGTERM")


def _frozen_with_jobs(operator: httpx.Client, worker: subprocess.Popen[bytes]) -> int:
    """Freeze the worker and look how many jobs it holds once its last call has come to its end; go on if it holds none."""
    worker.send_signal(signal.SIGSTOP)
    held = _holds(operator, f"python-{worker.pid}")
    time.sleep(0.3)
    if held and (held := _holds(operator, f"python-{worker.pid}")):
        return held
    worker.send_signal(signal.SIGCONT)
    return 0


def _states(operator: httpx.Client) -> Counter[str]:
    return Counter(operator.get(f"/v1/queues/{producer.QUEUE}").raise_for_status().json()["counts"])


def _holds(operator: httpx.Client, worker: str) -> int:
    found = operator.get("/v1/jobs", params={"queue": producer.QUEUE, "state": "running", "worker": worker})
    return len(found.raise_for_status().json()["items"])


def _compare(operator: httpx.Client, made: dict[str, Path]) -> bool:
    """What the workers did, read job by job over HTTP, against a direct computation."""
    with ThreadPoolExecutor(4) as pool:
        jobs = list(pool.map(lambda job_id: _job(operator, job_id), made))
    successes = Counter(sum(event["kind"] == "succeeded" for event in job["events"]) for job in jobs)
    by = Counter(job["result"]["by"] for job in jobs)
    lost = sum(job["lease_losses"] for job in jobs)
    found = [(job["result"]["sha256"], job["result"]["lines"]) for job in jobs]
    wanted = list(_directly(made.values()))
    say(f"Jobs by language: {', '.join(f'{name} {count}' for name, count in sorted(by.items()))}")
    say(f"Leases lost by the killed worker: {lost}; jobs with exactly one success: {successes[1]} of {len(jobs)}")
    say(
        f"Lines over HTTP: {sum(lines for _, lines in found):,}; computed directly: {sum(lines for _, lines in wanted):,}"
    )
    say(f"Digest over HTTP: {_digest(found)}; computed directly: {_digest(wanted)}")
    good = found == wanted and successes == {1: len(made)}
    say("EQUAL: every job was done exactly once." if good else "NOT EQUAL")
    return good


def _job(operator: httpx.Client, job_id: str) -> Any:
    return operator.get(f"/v1/jobs/{job_id}", params={"include": "result"}).raise_for_status().json()


def _directly(paths: Any) -> Iterator[tuple[str, int]]:
    for path in paths:
        content = path.read_bytes()
        yield hashlib.sha256(content).hexdigest(), content.count(b"\n")


def _digest(found: list[tuple[str, int]]) -> str:
    return hashlib.sha256("".join(digest for digest, _ in found).encode()).hexdigest()[:16]


if __name__ == "__main__":
    main()
