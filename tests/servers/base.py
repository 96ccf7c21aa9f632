"""What the tests may ask of a database: `Engine` (give me a database), `Server` (and let me break its process).

Nothing here knows one engine; what differs is in `mariadb`, `mysql`, `postgresql` and `sqlite`.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from tests.servers.clocks import FakeClock
from tests.servers.ports import free_port
from tests.servers.processes import Reaper, family

SERVER_TIME_ZONE = "Europe/Berlin"
"""The servers' zone: not UTC, with a summer time, and not the zone of the test process (see `tests/conftest.py`)."""

READY_SECONDS = 90.0
"""How long a server may take until it answers; a slow disk under load needs more than half of it."""

POLL_SECONDS = 0.05


def _memory() -> Path | None:
    """A folder in memory for the data, so that the servers keep their durable settings and a test does not wait for a disk.

    What a killed server had written is still there; no test cuts the power. TENURE_TEST_DISK=1 takes the disk: a
    measurement must wait for it. None: the usual temporary folder.
    """
    place = Path("/dev/shm")
    if os.environ.get("TENURE_TEST_DISK") or not os.access(place, os.W_OK):
        return None
    return place if shutil.disk_usage(place).free > LEAST_MEMORY else None


LEAST_MEMORY = 4 * 1024**3
MEMORY = _memory()


class ServerDied(RuntimeError):
    """The server's process ended, or did not answer in time. Carries the end of its log."""


class Engine(ABC):
    """A place that gives out empty databases by URL."""

    name: ClassVar[str]
    _numbers = itertools.count(1)

    @abstractmethod
    def create_database(self) -> str:
        """Return the URL of a new, empty database."""

    @abstractmethod
    def drop_database(self, url: str) -> None:
        """Remove what `create_database` gave, also while somebody is still connected to it."""

    @abstractmethod
    def disconnect_clients(self, url: str) -> None:
        """End every connection to this database, so that nothing of an earlier test holds a lock or still writes."""

    @abstractmethod
    def start(self) -> None:
        """Make the engine answer. On a running one: nothing."""

    @abstractmethod
    def close(self) -> None:
        """End it and remove all that it wrote."""

    def heal(self) -> None:
        """Undo whatever a fault test did, so that the next test finds the engine answering."""
        self.start()

    def new_name(self) -> str:
        return f"t{next(self._numbers)}_{secrets.token_hex(3)}"


class Server(Engine):
    """A database server process of our own: it can be killed, frozen and started again on the same data and port."""

    folder_root: Path | None = MEMORY
    """Where the temporary folder is made; None is the system's own place."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.port = 0
        self.clock: FakeClock | None = None
        """Set before the start: the wall clock that the server sees, for servers of a test's own."""
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: Reaper | None = None

    # What an engine fills in.

    @abstractmethod
    def prepare(self, folder: Path) -> None:
        """Make an empty data directory in `folder`. May take seconds; runs once."""

    @abstractmethod
    def command(self, folder: Path) -> list[str]:
        """The command line that serves `folder` on `self.port` in the foreground."""

    @abstractmethod
    def ping(self) -> None:
        """Connect, run a statement, disconnect; raises what the driver raises."""

    @abstractmethod
    def drop_folder_owner(self, folder: Path) -> None:
        """Give the new folder to the user that the server runs as, where that is not ours."""

    # What tests use.

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The main process's id. Fails on a stopped server."""
        if self._process is None or self._process.poll() is not None:
            raise ServerDied(f"{self.name} is not running")
        return self._process.pid

    def start(self) -> None:
        """Start, or start again on the same data and the same port, and return once statements are answered."""
        if self.running:
            return
        if self.folder is not None:
            self._launch(self.folder)
            return
        self.folder = self._make_folder()
        try:
            self.prepare(self.folder)
            self._launch_on_a_free_port(self.folder)
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """End the server in good order, as an operator does; open connections are cut."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """End every process of the server with SIGKILL, as a power cut or the OOM killer does."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze every process of the server: connections stay open and nobody answers."""
        stopped: set[int] = set()
        # Parents first, and again until nobody is new: a process may have been born meanwhile.
        while fresh := [pid for pid in family(self.pid) if pid not in stopped]:
            for pid in fresh:
                _send(pid, signal.SIGSTOP)
            stopped.update(fresh)

    def resume(self) -> None:
        """Undo `pause`."""
        for pid in family(self.pid):
            _send(pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stop in good order, then start."""
        self.stop()
        self.start()

    def heal(self) -> None:
        if self.running:
            self.resume()
        self.start()
        self._wait_until_ready()

    def close(self) -> None:
        self.kill()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def log_tail(self, lines: int = 15) -> str:
        if self.folder is None or not (log := self.folder / "server.log").exists():
            return ""
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])

    def inside(self, path: Path) -> Path:
        """A path as the server's process sees it."""
        return path

    def with_clock(self, folder: Path) -> list[str]:
        """What stands right before the server's program, so that it and nothing else has the clock."""
        if self.clock is None:
            return []
        return [
            "env",
            *(f"{name}={value}" for name, value in self.clock.environment(folder, self.inside(folder)).items()),
        ]

    # How it is done.

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def _make_folder(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=f"tenure-{self.name}-", dir=self.folder_root))
        self.drop_folder_owner(folder)
        return folder

    def _launch_on_a_free_port(self, folder: Path) -> None:
        """Another process may take the port between the choice and the start: then choose again."""
        for attempt in range(3):
            self.port = free_port()
            try:
                self._launch(folder)
            except ServerDied:
                if attempt == 2:
                    raise
            else:
                return

    def _launch(self, folder: Path) -> None:
        environment = {**os.environ, "TZ": SERVER_TIME_ZONE, "LC_ALL": "C.UTF-8"}
        with (folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        self._reaper = Reaper(self._process.pid, folder)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self.ping()
            except Exception as error:  # any driver's way to say "not yet"; the deadline and the exit status decide
                if self._exited_within(POLL_SECONDS):
                    self._release()
                    raise ServerDied(f"{self.name} ended at its start:\n{self.log_tail()}") from error
                if time.monotonic() > deadline:
                    self.kill()
                    raise ServerDied(f"{self.name} gave no answer in {READY_SECONDS} s:\n{self.log_tail()}") from error
            else:
                return

    def _exited_within(self, seconds: float) -> bool:
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            members = family(self._process.pid)
            targets = members if how == signal.SIGKILL else members[:1]
            for pid in members:
                _send(pid, signal.SIGCONT if how != signal.SIGKILL else how)
            for pid in targets:
                _send(pid, how)
            if not self._exited_within(READY_SECONDS):
                for pid in family(self._process.pid):
                    _send(pid, signal.SIGKILL)
                self._process.wait()
            _await_gone(members[1:])
        self._release()

    def _release(self) -> None:
        if self._reaper is not None:
            self._reaper.dismiss()
            self._reaper = None
        self._process = None


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _await_gone(pids: list[int]) -> None:
    """Wait for orphaned helper processes: PostgreSQL refuses to start while one still holds the shared memory."""
    deadline = time.monotonic() + READY_SECONDS
    pause = 0.001
    while any(_exists(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise ServerDied(f"processes {pids} do not end")
        time.sleep(pause)
        pause = min(pause * 2, POLL_SECONDS)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie whose new parent has not collected it yet is as good as gone.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return Path("/proc").exists() is False
