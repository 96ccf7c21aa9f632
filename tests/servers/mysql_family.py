"""What MariaDB and MySQL share as test servers: the account, databases, and how to ask whether they answer."""

from __future__ import annotations

import os
from pathlib import Path

import pymysql
from pymysql.constants import ER
from sqlalchemy.engine import make_url

from app.db.dialects.pymysql_connection import SharedContext
from tests.servers.base import Server

USER = "tenure"
PASSWORD = "not-a-secret"


class MySQLFamily(Server):
    """Serves with default durability: the log is flushed at each commit."""

    def drop_folder_owner(self, folder: Path) -> None:
        """Nothing to do: these servers run as whoever starts them, root too, when told so."""

    def write_account(self, folder: Path) -> Path:
        """Write the statements that each start runs: an account with a password, by TCP from this machine only."""
        script = folder / "account.sql"
        script.write_text(
            f"CREATE USER IF NOT EXISTS '{USER}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON *.* TO '{USER}'@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        return script

    def run_as(self) -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []

    def connect(
        self, database: str | None = None, read_seconds: int = 30
    ) -> pymysql.Connection[pymysql.cursors.Cursor]:
        """Open an administrator's connection, past SQLAlchemy."""
        return SharedContext(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            database=database,
            autocommit=True,
            connect_timeout=5,
            read_timeout=read_seconds,
        )

    def ping(self) -> None:
        self.execute("SELECT 1", read_seconds=5)

    def execute(self, statement: str, read_seconds: int = 30) -> list[tuple[object, ...]]:
        """Run one statement as administrator and return its rows."""
        connection = self.connect(read_seconds=read_seconds)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def create_database(self) -> str:
        name = self.new_name()
        self.execute(f"CREATE DATABASE {name}")
        return f"mysql+pymysql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{name}"

    def drop_database(self, url: str) -> None:
        self.disconnect_clients(url)
        self.execute(f"DROP DATABASE IF EXISTS {make_url(url).database}")

    def disconnect_clients(self, url: str) -> None:
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (make_url(url).database,))
                for (identity,) in cursor.fetchall():
                    try:
                        cursor.execute(f"KILL {identity}")
                    except pymysql.err.OperationalError as error:
                        if error.args[0] != ER.NO_SUCH_THREAD:
                            raise
        finally:
            connection.close()
