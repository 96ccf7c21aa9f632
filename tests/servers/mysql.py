"""A private MySQL server, from PATH or from a folder that holds a whole system to `chroot` into."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.servers.base import MEMORY
from tests.servers.mysql_family import MySQLFamily


class MySQL(MySQLFamily):
    name = "mysql"

    def __init__(self, server: str, root: Path | None = None) -> None:
        """`server` is the program, inside `root` where one is given."""
        super().__init__()
        self._server = server
        self._root = root
        # What the server writes must lie inside its root.
        self.folder_root = root / "tmp" if root is not None else MEMORY

    def prepare(self, folder: Path) -> None:
        subprocess.run(
            [
                *self._in_root(),
                self._server,
                "--no-defaults",
                "--initialize-insecure",
                f"--datadir={self._inside(folder, 'data')}",
                *self.run_as(),
            ],
            check=True,
            capture_output=True,
        )
        self.write_account(folder)

    def command(self, folder: Path) -> list[str]:
        return [
            *self._in_root(),
            *self.with_clock(folder),
            self._server,
            "--no-defaults",
            f"--datadir={self._inside(folder, 'data')}",
            f"--socket={self._inside(folder, 'sock')}",
            f"--pid-file={self._inside(folder, 'pid')}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            f"--init-file={self._inside(folder, 'account.sql')}",
            "--mysqlx=OFF",
            "--secure-file-priv=NULL",
            "--skip-name-resolve",
            "--max-connections=500",
            "--innodb-buffer-pool-size=64M",
            *self._unsynced(),
            *self.run_as(),
        ]

    def _unsynced(self) -> list[str]:
        """Memory is out of reach in the other root, so this one is told not to wait for the disk (see `base.MEMORY`)."""
        return [] if self._root is None or MEMORY is None else ["--innodb-flush-method=nosync", "--skip-log-bin"]

    def _in_root(self) -> list[str]:
        return [] if self._root is None else ["chroot", str(self._root)]

    def inside(self, path: Path) -> Path:
        return path if self._root is None else Path("/") / path.relative_to(self._root)

    def _inside(self, folder: Path, name: str) -> str:
        return str(self.inside(folder / name))
