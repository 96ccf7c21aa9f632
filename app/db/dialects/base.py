"""What differs between databases, as a few small methods. Business SQL stands in each primitive's `store.py`, once.

A dialect file holds only what SQLAlchemy's compiler cannot express. Nothing outside this folder asks for a dialect's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import URL, ColumnElement, Connection, Executable, Select, Table, tuple_
from sqlalchemy.exc import DBAPIError

DDL_LOCK_SECONDS = 3


class Fault(Enum):
    """What a database error means for the unit of work (`Database.run` acts on it)."""

    RETRY = "retry"  # rolled back for certain: run the unit again
    GONE = "gone"  # the connection or the server does not serve: new connection, run the unit again
    UNKNOWN = "unknown"  # COMMIT without an answer: run again with `tx.repeated`
    DUPLICATE = "duplicate"  # a unique index decided a race: run again, the op will see the winner
    BUG = "bug"  # anything else: no retry


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """What a server tells of all transactions that are open in it, whoever began them.

    `oldest_seconds`: since when the oldest has been open; 0 if none is, None if that is not shown to this account.
    `hidden`: what is not shown, and the right that would show it.
    """

    oldest_seconds: float | None
    hidden: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionGuard:
    """A trigger that refuses an INSERT which stands outside of a transaction, as far as this server shows that to a trigger.

    `create` and `drop` are statements; `drop` is right also where nothing is there. `count` tells how many are there. `proof`
    gives a number above 0 in an open transaction that has read a table, if this very server shows it. `refuses`: in words.
    """

    create: tuple[str, ...]
    drop: tuple[str, ...]
    count: str
    refuses: str
    proof: str | None = None


class Releasable(Protocol):
    def release(self) -> None: ...


class Dialect:
    """The portable behaviour; a subclass overrides what its server does differently."""

    name: str
    single_writer = False  # one writer connection for the whole process
    transactional_ddl = False
    waits_without_end = False  # the driver has no read timeout, so a watchdog must `cut`
    skip_locked = False  # set True once a probe has shown that this very server skips
    locks_are_local = False  # set True where other nodes take writes and do not see this one's locks, only its writes
    triggers_see_transactions = (
        False  # a trigger can tell whether its statement stands in a transaction (`transaction_guard`)
    )
    statement_seconds = 10  # a statement that runs longer is ended by the server, before our socket gives up

    def prepare(self, url: URL) -> None:
        """Whatever must be there before the first connection. Raises: StartupProblem for a URL that cannot be served."""

    def own(self, url: URL, purpose: str) -> Releasable | None:
        """Keep other processes out for as long as the result is held, where the database is one process's own."""
        return None

    def file_of(self, url: URL) -> Path | None:
        """The file that the database is; None for a server."""
        return None

    def engine_options(self, url: URL) -> dict[str, Any]:
        """Keyword arguments for `create_engine`."""
        return {}

    def ddl_options(self, url: URL) -> dict[str, Any]:
        """The same for the connection that changes the schema, whose statements may take long."""
        return self.engine_options(url)

    def connect(self, arguments: Mapping[str, Any]) -> Any | None:
        """Open a DBAPI connection, or give None where it is the driver's own way that is wanted."""
        return None

    def on_connect_ddl(self, connection: Any) -> None:
        """After `on_connect`: wait `DDL_LOCK_SECONDS` for a lock (all who come behind wait as long), no statement limit."""

    def on_connect(self, connection: Any, *, read_only: bool) -> None:
        """Prepare one fresh DBAPI connection."""

    def now(self) -> ColumnElement[int]:
        """SQL for the database's time in microseconds UTC, evaluated when the statement runs."""
        raise NotImplementedError(self.name)

    def classify(self, fault: DBAPIError, *, at_commit: bool) -> Fault:
        """What this error means. At COMMIT everything that is not surely rolled back is UNKNOWN."""
        raise NotImplementedError(self.name)

    def can_commit(self, connection: Connection) -> bool:
        """False if the open transaction is dead, and COMMIT would roll it back and still report success."""
        return True

    def cut(self, connection: Connection) -> None:
        """End a connection that another thread waits on, so that this thread gets an error. Never raises."""

    def open_transactions(self, connection: Connection) -> OpenTransactions | None:
        """How old the oldest open transaction is: until it ends, the server keeps all rows that were finished since.
        None where there is nobody but us.
        """
        return None

    def journal_bytes(self, url: URL) -> int | None:
        """Size of the journal beside the database's own file; None where the server sees to its journal."""
        return None

    def fold_journal(self, connection: Any) -> bool:
        """Fold that journal into the file, over a DBAPI connection; False if somebody was in the way."""
        return True

    def lock(self, query: Select[Any]) -> Select[Any]:
        """Lock the rows that the query finds, waiting for them."""
        return query.with_for_update()

    def lock_free(self, query: Select[Any]) -> Select[Any]:
        """Lock the rows that nobody else holds, if this server can; else wait. The lock is never the proof: the write
        that follows repeats the condition and counts.
        """
        return query.with_for_update(skip_locked=True) if self.skip_locked else query.with_for_update()

    def force_index(self, query: Select[Any], table: Table, index: str) -> Select[Any]:
        """Keep the optimizer on this index where it is known to stray."""
        return query

    def at_or_after(
        self, columns: Sequence[ColumnElement[Any]], values: Sequence[ColumnElement[Any]]
    ) -> ColumnElement[bool]:
        """Rows whose columns, taken together, come at or after the values in an ascending index that has them in this order."""
        return tuple_(*columns) >= tuple_(*values)

    def insert_missing(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> Executable:
        """Insert the rows whose unique keys are not there yet, and leave the others alone."""
        raise NotImplementedError(self.name)

    def upsert(self, table: Table, rows: Sequence[Mapping[str, Any]], changes: Sequence[str]) -> Executable:
        """Insert the rows; where the primary key is there, set `changes` to the new values."""
        raise NotImplementedError(self.name)

    def add_up(self, table: Table, rows: Sequence[Mapping[str, Any]], sums: Sequence[str]) -> Executable:
        """Insert the rows; where the primary key is there, add the new values of `sums` to the old."""
        raise NotImplementedError(self.name)

    def transaction_guard(self, name: str, table: str) -> TransactionGuard:
        """The trigger `name` on `table`, where `triggers_see_transactions`."""
        raise NotImplementedError(self.name)

    def server_checks(self, connection: Connection) -> list[tuple[str, bool, str]]:
        """(name, good, what was seen) of what `tenure check` and `/health` report of this server."""
        return []

    def most_connections(self, connection: Connection) -> int | None:
        """How many connections the server takes from all its clients together; None where that means nothing."""
        return None
