"""`tenure lock` and `tenure cache` as processes, over HTTP: real commands, real signals, a service that dies and freezes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import ROOT, ServiceProcess, environment, eventually, run_tenure

# a skin over calls that are tested on every engine: which one is behind them it cannot see
pytestmark = pytest.mark.engines("sqlite")
SECONDS = 60.0

# writes what it gets into a file, line by line; ends with 7 when it is told to, if it is not deaf
WORKER = """
import os, signal, sys, threading
log = open(sys.argv[1], "a", buffering=1)
def got(number, _):
    log.write(f"signal {number}\\n")
    if number == signal.SIGTERM and "deaf" not in sys.argv:
        os._exit(7)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, got)
log.write(f"began {os.environ['TENURE_LOCK_NAME']} {os.environ['TENURE_LOCK_FENCE']} {os.getpid()}\\n")
while True:
    threading.Event().wait(1)
"""


@pytest.fixture
def service(migrated_url: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(migrated_url) as running:
        yield running


class Running:
    """`tenure lock run` with the worker above."""

    def __init__(self, service: ServiceProcess, folder: Path, *options: str, deaf: bool = False) -> None:
        self.log = folder / "log"
        script = folder / "worker.py"
        script.write_text(WORKER, encoding="utf-8")
        worker = [sys.executable, str(script), str(self.log), *(["deaf"] if deaf else [])]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", "lock", "run", *options, "nightly", "--", *worker],
            cwd=ROOT,
            env=environment({"url": service.url}),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def lines(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []

    def began(self) -> tuple[int, int]:
        """The fence that the worker was given, and its process number."""
        eventually(lambda: self.lines() or self.process.poll() is not None, SECONDS, "the command begins")
        _, name, fence, pid = self.lines()[0].split()
        assert name == "nightly"
        return int(fence), int(pid)

    def close(self) -> None:
        """End what a test that failed has left: the supervisor, and the command in its group."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            if self.lines():
                with suppress(ProcessLookupError):
                    os.killpg(self.began()[1], signal.SIGKILL)

    def ends(self) -> tuple[int, str]:
        """Exit code, and what was said on the error stream."""
        _, said = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, said


@pytest.fixture
def start(service: ServiceProcess, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Call it for a command under a lock; it is ended after the test."""
    with ExitStack() as stack:

        def start_(*options: str, deaf: bool = False) -> Running:
            running = Running(service, tmp_path, *options, deaf=deaf)
            stack.callback(running.close)
            return running

        yield start_


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def run(service: ServiceProcess, *arguments: str, command: str = "exit 0") -> subprocess.CompletedProcess[str]:
    return run_tenure("lock", "run", *arguments, "nightly", "--", "sh", "-c", command, url=service.url)


def held(service: ServiceProcess) -> list[Any]:
    items: list[Any] = service.get("/v1/locks")["items"]
    return items


def acquire(service: ServiceProcess, **fields: Any) -> Any:
    return service.post("/v1/locks/acquire", {"name": "nightly", "owner": "me", "ttl_seconds": 600, **fields}, 200)


def test_a_command_runs_under_the_lock_and_gives_its_exit_code(service: ServiceProcess) -> None:
    done = run(service, command='echo "$TENURE_LOCK_NAME $TENURE_LOCK_FENCE"; env | grep -ci token; exit 5')
    assert (done.returncode, done.stdout.split()) == (5, ["nightly", "1", "0"])
    assert held(service) == [], "it was released"
    assert run(service, command="kill -USR2 $$").returncode == 128 + signal.SIGUSR2
    assert run_tenure("lock", "run", "nightly", "--", "/no/such/command", url=service.url).returncode == 127
    assert run_tenure("lock", "run", "nightly", "--", "/", url=service.url).returncode == 126
    assert held(service) == []
    for wrong in ("1s", "25h"):
        assert run(service, "--ttl", wrong).returncode == 2, wrong


def test_while_another_has_it_the_command_does_not_run(service: ServiceProcess, tmp_path: Path) -> None:
    acquire(service)
    mark = tmp_path / "mark"
    done = run(service, command=f"touch {mark}")
    assert done.returncode == 123
    assert "locked" in done.stderr
    assert run(service, "--conflict-exit-code", "0", command=f"touch {mark}").returncode == 0
    assert run(service, "--wait", "1s", "--ttl", "6s", command=f"touch {mark}").returncode == 123
    assert not mark.exists()


def test_a_wait_over_many_calls_keeps_its_place_and_survives_the_service(
    service: ServiceProcess, start: Callable[..., Running]
) -> None:
    taken = acquire(service)
    waits = start("--wait", "5m", "--ttl", "6s")
    eventually(lambda: held(service)[0]["waiters"] == 1, SECONDS, "it stands in line")
    service.kill()
    service.start()
    eventually(lambda: held(service)[0]["waiters"] == 1, SECONDS, "it stands in line again")
    service.post("/v1/locks/release", {"name": "nightly", "token": taken["reservation"]["token"]}, 200)
    assert waits.began()[0] == 2
    waits.process.send_signal(signal.SIGTERM)
    assert waits.ends()[0] == 7


def test_signals_are_forwarded(service: ServiceProcess, start: Callable[..., Running]) -> None:
    running = start()
    running.began()
    for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGINT):
        running.process.send_signal(number)
        eventually(lambda number=number: f"signal {int(number)}" in running.lines(), SECONDS, "the signal arrives")  # type: ignore[misc]
    running.process.send_signal(signal.SIGTERM)
    assert running.ends()[0] == 7
    assert held(service) == []


def test_the_lease_is_renewed_while_the_command_runs(service: ServiceProcess, start: Callable[..., Running]) -> None:
    running = start("--ttl", "5s")
    running.began()
    first = held(service)[0]["expires_at"]
    for _ in range(5):  # past the end of the first lease, and of the second
        last = first
        eventually(lambda last=last: held(service)[0]["expires_at"] > last, SECONDS, "it is renewed")  # type: ignore[misc]
        first = held(service)[0]["expires_at"]
    assert running.process.poll() is None, "it goes on"
    assert held(service)[0]["fence"] == 1
    running.process.send_signal(signal.SIGTERM)
    assert running.ends()[0] == 7


def test_a_lock_that_is_broken_ends_the_command(service: ServiceProcess, start: Callable[..., Running]) -> None:
    running = start("--ttl", "6s", "--grace", "1s", deaf=True)
    _, pid = running.began()
    done = run_tenure("lock", "break", "nightly", "--reason", "a test", "--fence", "1", url=service.url)
    assert done.returncode == 0
    code, said = running.ends()
    assert code == 122
    assert "reservation_lost" in said
    assert f"signal {int(signal.SIGTERM)}" in running.lines(), "it was asked first"
    assert not alive(pid), "and killed, for it did not listen"


def test_everything_that_the_command_has_started_ends_with_it(service: ServiceProcess, tmp_path: Path) -> None:
    child = tmp_path / "child"
    command = f"sh -c 'echo $$ > {child}; trap \"\" TERM; while :; do read _ < /dev/zero & wait; done' & wait"
    running = subprocess.Popen(
        [sys.executable, "-m", "app", "lock", "run", "--ttl", "6s", "--grace", "1s", "nightly", "--", "sh", "-c", command],
        cwd=ROOT, env=environment({"url": service.url}), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    pid = int(eventually(lambda: child.exists() and child.read_text().strip(), SECONDS, "its child runs"))
    assert alive(pid)
    run_tenure("lock", "break", "nightly", "--reason", "a test", url=service.url)
    assert running.wait(SECONDS) == 122
    eventually(lambda: not alive(pid), SECONDS, "its child has ended")


@pytest.mark.parametrize("away", ["killed", "frozen"])
def test_a_lock_that_cannot_be_renewed_ends_the_command_before_its_lease(
    service: ServiceProcess, start: Callable[..., Running], away: str
) -> None:
    running = start("--ttl", "6s", "--grace", "1s", deaf=True)
    _, pid = running.began()
    ends = held(service)[0]["expires_at"]
    if away == "killed":
        service.kill()
    else:
        service.pause()
    code, said = running.ends()
    assert code == 122
    assert "could not be renewed" in said
    assert not alive(pid)
    if away == "killed":
        service.start()
    else:
        service.resume()
    (lock,) = held(service) or [None]
    assert lock is None or lock["expires_at"] >= ends, "by the database's clock, nobody else can have had it"


def test_a_short_absence_of_the_service_is_survived(service: ServiceProcess, start: Callable[..., Running]) -> None:
    running = start("--ttl", "30s")
    running.began()
    service.kill()
    service.start()
    first = held(service)[0]["expires_at"]
    eventually(lambda: held(service)[0]["expires_at"] > first, SECONDS, "it is renewed again")
    running.process.send_signal(signal.SIGTERM)
    assert running.ends()[0] == 7
    assert held(service) == []


def test_without_a_service_nothing_runs(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    done = run_tenure("lock", "run", "l", "--", "touch", str(mark), url="http://127.0.0.1:9")
    assert done.returncode == 125
    assert not mark.exists()


# -- looking ---------------------------------------------------------------------------------------------------------------


def test_locks_are_listed_and_broken(service: ServiceProcess) -> None:
    acquire(service)
    heading, line = run_tenure("lock", "list", url=service.url).stdout.splitlines()
    found = dict(zip(heading.split("\t"), line.split("\t"), strict=True))
    assert (found["name"], found["owner"], found["fence"], found["waiters"]) == ("nightly", "me", "1", "0")
    assert json.loads(run_tenure("lock", "list", "--json", url=service.url).stdout)["items"][0]["name"] == "nightly"
    wrong = run_tenure("lock", "break", "nightly", "--reason", "r", "--fence", "9", url=service.url)
    assert (wrong.returncode, "Nothing to break" in wrong.stderr) == (0, True)
    assert "me held it" in run_tenure("lock", "break", "nightly", "--reason", "r", url=service.url).stderr
    assert run_tenure("lock", "break", "unknown", "--reason", "r", url=service.url).returncode == 3
    assert run_tenure("lock", "list", url=service.url).stdout.splitlines()[1:] == []


def test_a_namespace_of_the_cache_is_cleared(service: ServiceProcess) -> None:
    for name in ("a", "b"):
        service.put(f"/v1/cache/{name}/k", {"value": 1, "ttl_seconds": 600}, 200)
    assert run_tenure("cache", "clear", "a", url=service.url).returncode == 2, "it asks, and there is no terminal"
    done = run_tenure("cache", "clear", "a", "--yes", "--json", url=service.url)
    assert json.loads(done.stdout) == {"namespace": "a", "cleared": 1}
    items = json.loads(run_tenure("cache", "list", "--json", url=service.url).stdout)["items"]
    assert {one["namespace"]: one["entries"] for one in items} == {"a": 0, "b": 1}
    for wrong in ("no space", ".", "..", "", "a/b"):
        assert run_tenure("cache", "clear", wrong, "--yes", url=service.url).returncode == 2, wrong
