"""The files that the rules look at: what git tracks or would add, as text."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from scripts.lints.rule import Source

ROOT = Path(__file__).resolve().parents[2]


def sources() -> Iterator[Source]:
    """Give every text file of the repository, also those that are not committed yet."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    for name in sorted(set(listed.decode().split("\0"))):
        path = ROOT / name
        if not name or not path.is_file():
            continue  # deleted and not committed yet
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture or another binary file
        yield Source(name, text)
