"""A private PostgreSQL server. It refuses to run as root, so root hands it to an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from tests.servers.base import SERVER_TIME_ZONE, Server

USER = "tenure"


class PostgreSQL(Server):
    name = "postgresql"
    stop_signal = signal.SIGINT
    """The fast shutdown: open connections are cut."""

    def __init__(self, binaries: Path) -> None:
        super().__init__()
        self._binaries = binaries
        self._user = unprivileged_user()

    def drop_folder_owner(self, folder: Path) -> None:
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)

    def prepare(self, folder: Path) -> None:
        subprocess.run(
            [
                *self._as_user(),
                str(self._binaries / "initdb"),
                f"--pgdata={folder / 'data'}",
                f"--username={USER}",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
            ],
            check=True,
            capture_output=True,
            cwd="/",
        )

    def command(self, folder: Path) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "timezone": SERVER_TIME_ZONE,
            "log_timezone": SERVER_TIME_ZONE,
            "max_connections": "300",
            "shared_buffers": "64MB",
            "max_prepared_transactions": "4",
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [
            *self._as_user(),
            *self.with_clock(folder),
            str(self._binaries / "postgres"),
            "-D",
            str(folder / "data"),
            *options,
        ]

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """Open an administrator's connection, past SQLAlchemy."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, dbname=database, autocommit=True, connect_timeout=5
        )

    def ping(self) -> None:
        with self.connect() as connection:
            connection.execute("SELECT 1")

    def create_database(self) -> str:
        return self._create("template0")

    def copy_database(self, url: str) -> str:
        """Return the URL of a copy. Connections to the original are ended."""
        self.disconnect_clients(url)
        return self._create(_database(url))

    def drop_database(self, url: str) -> None:
        with self.connect() as connection:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(_database(url)))
            )

    def disconnect_clients(self, url: str) -> None:
        with self.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [_database(url)]
            )

    def _create(self, template: str) -> str:
        name = self.new_name()
        with self.connect() as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
            )
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/{name}"

    def _as_user(self) -> list[str]:
        if self._user is None:
            return []
        return [
            shutil.which("setpriv") or "setpriv",
            f"--reuid={self._user.pw_uid}",
            f"--regid={self._user.pw_gid}",
            "--clear-groups",
        ]


def unprivileged_user() -> pwd.struct_passwd | None:
    """Return whom to run the server as, or None where we are not root and need nobody else."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("root needs a user `postgres` or `nobody` to run PostgreSQL as")


def _database(url: str) -> str:
    name = make_url(url).database
    assert name is not None
    return name
