"""A private MariaDB server."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.servers.mysql_family import MySQLFamily


class MariaDB(MySQLFamily):
    name = "mariadb"

    def __init__(self, server: Path, installer: Path) -> None:
        super().__init__()
        self._server = server
        self._installer = installer

    def prepare(self, folder: Path) -> None:
        (folder / "tmp").mkdir()
        subprocess.run(
            [
                str(self._installer),
                "--no-defaults",
                f"--datadir={folder / 'data'}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                _own_tmpdir(folder),
                *self.run_as(),
            ],
            check=True,
            capture_output=True,
        )
        self.write_account(folder)

    def command(self, folder: Path) -> list[str]:
        return [
            *self.with_clock(folder),
            str(self._server),
            "--no-defaults",
            f"--datadir={folder / 'data'}",
            "--socket=server.sock",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            f"--init-file={folder / 'account.sql'}",
            "--skip-name-resolve",
            "--max-connections=500",
            "--innodb-buffer-pool-size=64M",
            _own_tmpdir(folder),
            *self.run_as(),
        ]


def _own_tmpdir(folder: Path) -> str:
    """A server that starts deletes all temporary tables that it finds, also those of another one that runs."""
    return f"--tmpdir={folder / 'tmp'}"
