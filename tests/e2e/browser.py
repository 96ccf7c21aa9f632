"""A real browser without a window, driven through a pipe by its own protocol (DevTools); no other program is needed."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tests.e2e.process import NeverHappened

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
MISSING = "no Chromium on this machine; Debian's package is chromium"
ANSWER_SECONDS = 60.0
_OPTIONS = ("--headless", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--remote-debugging-pipe")


class Page:
    """One page. Keeps all that it asked for (`requests`: URLs) and all that it complained of (`complaints`)."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="tenure-browser-", ignore_cleanup_errors=True)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None

    def __enter__(self) -> Self:
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        assert PROGRAM is not None, MISSING
        root = ("--no-sandbox",) if os.geteuid() == 0 else ()  # its sandbox refuses root
        options = (*_OPTIONS, *root, f"--user-data-dir={self._folder.name}", "about:blank")
        pipes = f'exec "$@" 3</dev/fd/{theirs_in} 4>/dev/fd/{theirs_out}'  # the numbers are the protocol's
        self._process = subprocess.Popen(
            ["sh", "-c", pipes, "sh", PROGRAM, *options],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Log", "Runtime", "Page"):
            self._ask(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def open(self, url: str) -> None:
        answer = self._ask("Page.navigate", url=url)
        assert "errorText" not in answer, answer

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, seconds: float = 60.0) -> Any:
        """Evaluate until the value is true, and give it. What else the browser tells is heard meanwhile."""
        deadline = time.monotonic() + seconds
        while not (found := self.evaluate(script)):
            if time.monotonic() > deadline:
                raise NeverHappened(f"{script} within {seconds} s; complaints: {self.complaints}")
            self._hear(lambda _message: False, 0.05)
        return found

    # -- the protocol --------------------------------------------------------------------------------------------------

    def _ask(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        answer = self._hear(lambda heard: heard.get("id") == number, ANSWER_SECONDS)
        assert answer is not None, f"the browser does not answer {method}"
        assert "error" not in answer, answer
        return answer["result"]

    def _hear(self, wanted: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any] | None:
        """Read until a wanted message comes, or the time is over; note what the page did."""
        deadline = time.monotonic() + seconds
        while True:
            while b"\0" in self._buffer:
                text, _, self._buffer = self._buffer.partition(b"\0")
                message: dict[str, Any] = json.loads(text)
                self._note(message.get("method", ""), message.get("params", {}))
                if wanted(message):
                    return message
            if not select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            piece = os.read(self._from, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("warning", "error"):
            entry = told["entry"]
            self.complaints.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("warning", "error", "assert"):
            self.complaints.append(" ".join(str(one.get("value", one.get("description"))) for one in told["args"]))
