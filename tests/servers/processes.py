"""Process families and their end: who descends from a server, and who clears up when the tests are killed."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# Reads until the test process says "done" or is gone. Gone means killed: then the server and its folder go too.
_REAPER = """
import os, shutil, signal, sys
if not sys.stdin.readline():
    try:
        os.kill(int(sys.argv[1]), signal.SIGKILL)
    except ProcessLookupError:
        pass
    shutil.rmtree(sys.argv[2], ignore_errors=True)
"""


class Reaper:
    """A small process that outlives the tests by a moment and ends one server if they were killed."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _REAPER, str(pid), str(folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """The server has ended; the reaper has nothing left to do."""
        self._process.communicate(b"done\n")


def family(pid: int) -> list[int]:
    """Return `pid` and all that descends from it, ancestors first.

    Process groups are not enough: PostgreSQL gives each backend a session of its own.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for child, parent in _parents():
        children[parent].append(child)
    found = [pid]
    for member in found:
        found.extend(children[member])
    return found


def _parents() -> list[tuple[int, int]]:
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True).stdout
        return [(int(line.split()[0]), int(line.split()[1])) for line in listed.splitlines()]
    pairs = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pairs.append((int(stat.parent.name), int(text.rpartition(")")[2].split()[1])))
    return pairs
