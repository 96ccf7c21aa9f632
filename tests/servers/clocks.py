"""The wall clock of one process, moved by a test; its steady clock stays as it is, as on a real host."""

from __future__ import annotations

import shutil
from pathlib import Path

LIBRARY = next(
    (
        path
        for folder in ("/usr/lib", "/usr/lib64", "/usr/local/lib")
        for path in sorted(Path(folder).glob("**/faketime/libfaketimeMT.so.1"))
    ),
    None,
)
MISSING = "libfaketime is not on this machine; Debian's package is faketime"


class FakeClock:
    """`environment` starts a process with this clock, `move` moves it while the process runs."""

    def __init__(self) -> None:
        self._offset = "+0"
        self._file: Path | None = None

    def move(self, offset: str) -> None:
        """Such as "+1h", "-1h" or "+3600" against this host. The process sees it within a second."""
        self._offset = offset
        if self._file is not None:
            self._file.write_text(f"{offset}\n")

    def environment(self, folder: Path, seen_as: Path | None = None) -> dict[str, str]:
        """Variables for a process that can read `folder`, which is `seen_as` for it if it has another root."""
        assert LIBRARY is not None, MISSING
        seen = seen_as or folder
        self._file = folder / "clock"
        self.move(self._offset)
        self._file.chmod(0o644)
        shutil.copyfile(LIBRARY, folder / LIBRARY.name)
        return {
            "LD_PRELOAD": str(seen / LIBRARY.name),
            "FAKETIME_TIMESTAMP_FILE": str(seen / self._file.name),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
