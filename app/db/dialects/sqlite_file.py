"""The OS lock that makes one process the owner of an SQLite file. It ends with the process, however that ends."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from app.errors import StartupProblem

MIGRATING = "migrating"
_POLL_SECONDS = 0.05


@dataclass(slots=True)
class _Held:
    descriptor: int
    users: int


_held: dict[Path, _Held] = {}
_guard = threading.Lock()


class FileLock:
    """This process's hold on `<file>.lock`. Within the process it is shared: the last `release` lets go."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._released = False

    def release(self) -> None:
        with _guard:
            if self._released:
                return
            self._released = True
            held = _held[self._path]
            held.users -= 1
            if held.users == 0:
                del _held[self._path]
                # the file stays: another process may have it open already, and would lock a file that is gone
                os.ftruncate(held.descriptor, 0)
                os.close(held.descriptor)


def hold(database_file: Path, purpose: str, wait_seconds: float = 30.0) -> FileLock:
    """Own the file for this process. Waits only for a process that migrates it, which takes no longer than that.

    Raises: StartupProblem if another process owns it.
    """
    path = database_file.resolve().with_name(database_file.name + ".lock")
    deadline = time.monotonic() + wait_seconds
    while True:
        with _guard:
            if path in _held:
                _held[path].users += 1
                return FileLock(path)
            descriptor = _try(path, purpose)
            if descriptor is not None:
                _held[path] = _Held(descriptor, 1)
                return FileLock(path)
        pid, doing = _holder(path)
        if doing != MIGRATING or time.monotonic() > deadline:
            raise StartupProblem(
                f"{database_file} is in use by the process {pid}: SQLite serves one process at a time; "
                "talk to that process over HTTP, or use MariaDB, MySQL or PostgreSQL"
            )
        time.sleep(_POLL_SECONDS)


def _try(path: Path, purpose: str) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as fault:
        raise StartupProblem(f"{path} cannot be opened: {fault.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {purpose}\n".encode(), 0)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as fault:
        os.close(descriptor)
        raise StartupProblem(f"{path} cannot be locked: {fault.strerror} (is it on a network file system?)") from None
    return descriptor


def _holder(path: Path) -> tuple[str, str]:
    pid, _, purpose = path.read_text(encoding="utf-8").strip().partition(" ")
    return pid or "?", purpose or MIGRATING  # an empty file: its owner writes in a moment
