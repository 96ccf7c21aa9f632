"""SQLite 3.35 and later: the embedded default, one process, one writer thread."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import URL, BigInteger, ColumnElement, Connection, Executable, Table, func
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DBAPIError

from app.db.dialects import sqlite_file
from app.db.dialects.base import Dialect, Fault, Releasable
from app.errors import StartupProblem

CHECKPOINT_PAGES, PAGE_BYTES = 2000, 4096
BUSY, LOCKED, READONLY, IOERR, FULL, CANTOPEN = 5, 6, 8, 10, 13, 14
CONSTRAINT_UNIQUE, CONSTRAINT_PRIMARYKEY = 2067, 1555


class SQLite(Dialect):
    name = "sqlite"
    single_writer = True
    transactional_ddl = True

    def __init__(self, synchronous: str = "FULL") -> None:
        self.synchronous = synchronous

    def prepare(self, url: URL) -> None:
        file = self._file(url)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise StartupProblem(
                f"the folder {file.parent} for the database cannot be made: {fault.strerror}"
            ) from None

    def own(self, url: URL, purpose: str) -> Releasable:
        return sqlite_file.hold(self._file(url), purpose)

    def file_of(self, url: URL) -> Path | None:
        return self._file(url)

    def _file(self, url: URL) -> Path:
        name = url.database or ""
        if not name or ":memory:" in name or name.startswith("file:"):
            raise StartupProblem(
                "TENURE_DATABASE_URL must name a file (sqlite:///path/to/tenure.db): every thread has a connection of its "
                "own, and each would see its own empty database in memory",
                exit_code=2,
            )
        return Path(name)

    def engine_options(self, url: URL) -> dict[str, Any]:
        # the driver opens no transaction by itself; `Database` begins IMMEDIATE, or a read would turn into a write late
        # and fail at once with BUSY_SNAPSHOT
        return {"connect_args": {"isolation_level": None, "check_same_thread": False, "timeout": 5.0}}

    def on_connect(self, connection: Any, *, read_only: bool) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={self.synchronous}")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        # what a reader made it grow is given back once that has ended, so that the file's size says how things are
        connection.execute(f"PRAGMA journal_size_limit={CHECKPOINT_PAGES * PAGE_BYTES}")
        connection.execute("PRAGMA cache_size=-65536")
        connection.create_function("tenure_now", 0, _wall_micros)
        if read_only:
            connection.execute("PRAGMA query_only=ON")

    def now(self) -> ColumnElement[int]:
        # one process on one host: its clock is the database's
        return func.tenure_now(type_=BigInteger())

    def classify(self, fault: DBAPIError, *, at_commit: bool) -> Fault:
        extended = getattr(fault.orig, "sqlite_errorcode", 0)
        code = extended & 0xFF
        if code in (BUSY, LOCKED):
            return Fault.RETRY
        if code in (READONLY, IOERR, FULL, CANTOPEN):
            return Fault.UNKNOWN if at_commit else Fault.GONE
        if extended in (CONSTRAINT_UNIQUE, CONSTRAINT_PRIMARYKEY):
            return Fault.DUPLICATE
        return Fault.UNKNOWN if at_commit else Fault.BUG

    def journal_bytes(self, url: URL) -> int:
        journal = self._file(url)
        try:
            return journal.with_name(journal.name + "-wal").stat().st_size
        except FileNotFoundError:
            return 0

    def fold_journal(self, connection: Any) -> bool:
        # TRUNCATE waits for readers while it keeps writers out: not here
        connection.execute("PRAGMA busy_timeout=0")
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return bool(busy == 0)

    def insert_missing(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> Executable:
        return insert(table).values(list(rows)).on_conflict_do_nothing()

    def upsert(self, table: Table, rows: Sequence[Mapping[str, Any]], changes: Sequence[str]) -> Executable:
        statement = insert(table).values(list(rows))
        return statement.on_conflict_do_update(
            index_elements=list(table.primary_key), set_={name: statement.excluded[name] for name in changes}
        )

    def add_up(self, table: Table, rows: Sequence[Mapping[str, Any]], sums: Sequence[str]) -> Executable:
        statement = insert(table).values(list(rows))
        return statement.on_conflict_do_update(
            index_elements=list(table.primary_key),
            set_={name: table.c[name] + statement.excluded[name] for name in sums},
        )

    def server_checks(self, connection: Connection) -> list[tuple[str, bool, str]]:
        level = connection.exec_driver_sql("PRAGMA synchronous").scalar()
        return [("durable_commit", level in (2, 3), f"synchronous={level}")]


def _wall_micros() -> int:
    return time.time_ns() // 1000
