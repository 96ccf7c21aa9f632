"""Run a command for as long as something is held: forward signals to it, and end it when the lease is lost.

The command is a process group of its own. What the command itself does about signals, files and the terminal is left alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.cli.lease import Lease

NOT_EXECUTABLE, NOT_FOUND, BY_SIGNAL = 126, 127, 128  # as shells have them
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class NotStarted(Exception):
    """The command could not be run; `exit_code` says why, as a shell would."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(slots=True)
class Supervised:
    """One command under one lease. `run` gives its exit code: its own, or 128 and the number of the signal that ended it."""

    command: Sequence[str]
    environment: Mapping[str, str]
    lease: Lease
    grace_seconds: float
    events: SimpleQueue[tuple[str, Any]] = field(default_factory=SimpleQueue)
    _process: subprocess.Popen[bytes] = field(init=False)

    def run(self) -> int:
        with self._signals():
            self._process = self._start()
            self.lease.on_lost = lambda: self.events.put(("lost", None))
            threading.Thread(target=self._wait, name="tenure-command", daemon=True).start()
            with _foreground(self._process.pid):
                code = self._watch()
        return code if code >= 0 else BY_SIGNAL - code

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(self.command, env=dict(self.environment), process_group=0)  # noqa: S603 - what this command is for
        except FileNotFoundError:
            raise NotStarted(f"{self.command[0]}: command not found", NOT_FOUND) from None
        except OSError as fault:
            raise NotStarted(f"{self.command[0]}: {fault.strerror}", NOT_EXECUTABLE) from None

    def _wait(self) -> None:
        self.events.put(("ended", self._process.wait()))

    def _watch(self) -> int:
        """Until the command has ended. It is told to end in time for its lease, and killed when that time is over."""
        told = False
        while True:
            kind, value = self._next(0.0 if told else self.grace_seconds)
            if kind == "ended":
                if told:  # what it has started must not go on without the lease
                    self._send(signal.SIGKILL)
                return int(value)
            if kind == "signal":
                self._send(value)
            elif not told:
                told = True
                self._tell_to_end()
            elif kind == "due":
                self._send(signal.SIGKILL)
                self._process.wait()

    def _next(self, spare_seconds: float) -> tuple[str, Any]:
        """What happens next; `due` once no more than this is left of the lease, which renewals move on meanwhile."""
        while True:
            with suppress(Empty):
                return self.events.get(timeout=max(0.0, self.lease.seconds_left() - spare_seconds))
            if self.lease.seconds_left() <= spare_seconds:
                return "due", None

    def _tell_to_end(self) -> None:
        """The lease is lost, or will be before anybody could renew it."""
        self.lease.give_up(self.grace_seconds)
        click.echo(f"tenure: {self.lease.why}: ending the command", err=True)
        self._send(signal.SIGTERM)
        self._send(signal.SIGCONT)  # one that is stopped could not end

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """While the command runs, what this process is sent goes to it."""
        before: dict[int, Callable[..., Any] | int | None] = {
            number: signal.signal(number, lambda got, _: self.events.put(("signal", got))) for number in FORWARDED
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _foreground(group: int) -> Iterator[None]:
    """On a terminal, give it to the command, so that it can read from it and gets Ctrl-C."""
    if not sys.stdin.isatty() or os.tcgetpgrp(0) != os.getpgrp():
        yield
        return
    ours, before = os.getpgrp(), signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with suppress(OSError):  # the command may have ended already
            os.tcsetpgrp(0, group)
        yield
    finally:
        os.tcsetpgrp(0, ours)
        signal.signal(signal.SIGTTOU, before)
