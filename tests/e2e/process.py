"""Tenure as a real process, the way operators run it: `python -m app …` with nothing but its environment.

`ServiceProcess` can be killed, frozen, ended in good order and started again on the same port. `run_tenure` runs a command.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
END_SECONDS = 30.0
COMMAND_SECONDS = 90.0
_LISTENS = re.compile(r"^Tenure listens on (http://\S+)", re.MULTILINE)

T = TypeVar("T")


class NeverHappened(AssertionError):
    """A condition that was waited for did not come true in time."""


def eventually(condition: Callable[[], T], seconds: float = 20.0, what: str = "", every: float = 0.02) -> T:
    """Call `condition` until it gives something true, and give that."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise NeverHappened(f"{what or getattr(condition, '__name__', condition)} within {seconds} s")
        pause.wait(every)
    return found


def environment(settings: Mapping[str, Any]) -> dict[str, str]:
    """This process's environment with these TENURE_ settings and no others."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    given = {name if name.isupper() else f"TENURE_{name.upper()}": str(value) for name, value in settings.items()}
    return {**clean, "PYTHONUNBUFFERED": "1", **given}


def run_tenure(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, with TENURE_ settings by name (`database_url=…`), and give what it printed."""
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        cwd=ROOT,
        env=environment(settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


class ServiceProcess:
    """`tenure serve` on a database. A context manager, or `start` and `close`.

    `settings` are TENURE_ settings by name, or whole variables in capitals (`LD_PRELOAD=…`).
    """

    program: tuple[str, ...] = (sys.executable, "-m", "app")
    place = ROOT

    def __init__(self, database_url: str, *arguments: str, **settings: Any) -> None:
        self.settings: dict[str, Any] = {"database_url": database_url, "port": 0, "log_format": "json", **settings}
        self.arguments = arguments
        self.url = ""
        self._folder = tempfile.TemporaryDirectory(prefix="tenure-service-")
        self._log = Path(self._folder.name) / "log"
        self._process: subprocess.Popen[bytes] | None = None

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start, or start again on the same port, and return once it answers."""
        self._log.write_bytes(b"")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.program, "serve", *self.arguments],
                cwd=self.place,
                env=environment(self.settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.url = eventually(self._announced, START_SECONDS, "the service listens")
        self.settings["port"] = self.url.rsplit(":", 1)[1]
        eventually(self._answers, START_SECONDS, "the service answers /startupz")
        return self

    def _announced(self) -> str:
        if self.process.poll() is not None:
            raise NeverHappened(f"the service ended with {self.process.returncode}:\n{self.log()}")
        found = _LISTENS.search(self.log())
        return found[1] if found else ""

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise NeverHappened(f"the service ended with {self.process.returncode}:\n{self.log()}")
        try:
            return httpx.get(f"{self.url}/startupz", timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "start() comes first"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def terminate(self) -> int:
        """SIGTERM, as an orchestrator sends it; gives the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_SECONDS)

    def kill(self) -> None:
        """SIGKILL, as the OOM killer sends it."""
        self.process.kill()
        self.process.wait(END_SECONDS)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            sys.stderr.write(f"--- the end of the service's log\n{self.log()[-4000:]}\n")
        self.close()

    # -- looking at it -------------------------------------------------------------------------------------------------

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def client(self, **options: Any) -> httpx.Client:
        """A client of this service; close it."""
        return httpx.Client(base_url=self.url, trust_env=False, timeout=options.pop("timeout", 40), **options)

    def post(self, path: str, body: Any, status: int | None = None) -> Any:
        """One call on a connection of its own; `status` is what it must answer."""
        answer = httpx.post(f"{self.url}{path}", json=body, timeout=40, trust_env=False)
        assert status is None or answer.status_code == status, answer.text
        return answer.json()

    def put(self, path: str, body: Any, *statuses: int) -> Any:
        answer = httpx.put(f"{self.url}{path}", json=body, timeout=40, trust_env=False)
        assert not statuses or answer.status_code in statuses, answer.text
        return answer.json()

    def get(self, path: str, status: int | None = 200) -> Any:
        answer = httpx.get(f"{self.url}{path}", timeout=40, trust_env=False)
        assert status is None or answer.status_code == status, answer.text
        return answer.json()

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
