"""`Database`: transactions and the one retry boundary. Everything that writes goes through `run`.

Each database thread keeps one connection of its own (`connections`), so the number of connections is the number of threads
and no unit of work pays for a pool's ping and reset.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import structlog
from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError

from app.clock import Clock, steady_micros
from app.db import dialects, engines, probing
from app.db.connections import Connections
from app.db.dialects.base import Dialect, Fault, Releasable
from app.db.engines import Use
from app.db.faults import CommitUnanswered, DatabaseBug, NotConnected, code, kind, place, unavailable
from app.db.tx import Op, Tx
from app.db.watchdog import Watchdog
from app.errors import StartupProblem

log = structlog.get_logger("tenure.db")

TRIES = 5
WITHIN_SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.25

Result = TypeVar("Result")


class Database:
    """One database, opened once in a process.

    `faults` counts what the retry boundary met, by kind, for the metrics. `capabilities` says what this very server was
    found to do, for `/health` and the metrics.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, sqlite_synchronous: str = "FULL") -> None:
        self._url = engines.parse(url)
        self._sqlite_synchronous = sqlite_synchronous
        self.clock = clock or Clock()
        self.dialect: Dialect = dialects.for_url(self._url.get_backend_name(), sqlite_synchronous=sqlite_synchronous)
        self.host: Any = None  # handed to every op in its Tx
        self.faults: dict[str, int] = {}
        self.capabilities: dict[str, str] = {}
        self._connections: Connections
        self._measured: int | None = None  # the generation of connections that the clock was last read in
        self._owned: Releasable | None = None
        self._watchdog: Watchdog | None = None

    def open(self) -> None:
        """Connect, find out what server this is and what it can do, and measure its clock.

        Raises: StartupProblem with one line (without the password) if it does not answer, if the URL cannot be served, or
        if another process owns the file.
        """
        try:
            self.dialect.prepare(self._url)
            self._owned = self.dialect.own(self._url, "open")
            self.dialect = engines.recognise(self._url, sqlite_synchronous=self._sqlite_synchronous)
            self._connections = Connections(self.dialect, self._url)
            with self._connections.mine("read").at_work() as connection:
                self._measure(connection)
                self.capabilities = {"engine": self.dialect.name, "server_version": _version(connection)}
            self.probe()
        except DBAPIError as error:
            self.shutdown()
            raise StartupProblem(f"no connection to {place(self._url)}: {kind(error)} {code(error)}".rstrip()) from None
        except BaseException:
            self.shutdown()
            raise
        if self.dialect.waits_without_end:
            self._watchdog = Watchdog(self._connections, self.dialect)
            self._watchdog.start()

    def probe(self) -> None:
        """Find out whether this server skips locked rows. Without the schema it stays unproven; then call this again."""
        verdict = probing.skip_locked(self.dialect, self._connections.engine("write"))
        self.dialect.skip_locked = verdict is probing.Verdict.YES
        self.capabilities["skip_locked"] = verdict.value

    def close(self) -> None:
        """Close this thread's connections. A thread that used the database calls this before it ends."""
        if hasattr(self, "_connections"):
            self._connections.close_mine()

    def shutdown(self) -> None:
        """Close all connections and let go of the file. Call it once the threads that used the database have ended."""
        if self._watchdog is not None:
            self._watchdog.stop()
        if hasattr(self, "_connections"):
            self._connections.close_all()
        if self._owned is not None:
            self._owned.release()

    # -- the clock -----------------------------------------------------------------------------------------------------

    def measure_clock(self) -> int:
        """Read the database's clock again; gives the step against the last measurement in microseconds."""
        return self._attempt(lambda connection, _: self._measure(connection), "read", WITHIN_SECONDS)

    def _measure(self, connection: Connection) -> int:
        generation = self._connections.generation
        with connection.begin():
            before = steady_micros()
            database = int(connection.execute(select(self.dialect.now())).scalar_one())
            after = steady_micros()
        self._measured = generation
        return self.clock.adopt((before + after) // 2, database)

    # -- upkeep --------------------------------------------------------------------------------------------------------

    def server_checks(self) -> list[tuple[str, bool, str]]:
        """(name, good, what was seen): settings of the server that `tenure check` and `/health` report."""
        return self._attempt(lambda connection, _: self._check(connection), "read", WITHIN_SECONDS)

    def _check(self, connection: Connection) -> list[tuple[str, bool, str]]:
        with connection.begin():
            return self.dialect.server_checks(connection)

    def most_connections(self) -> int | None:
        """How many connections the server takes at most; None where that means nothing."""
        return self._attempt(lambda connection, _: self._most(connection), "read", WITHIN_SECONDS)

    def _most(self, connection: Connection) -> int | None:
        with connection.begin():
            return self.dialect.most_connections(connection)

    def journal_bytes(self) -> int | None:
        """Size of what waits to be folded into the database file (SQLite's WAL); None where the server sees to that."""
        return self.dialect.journal_bytes(self._url)

    def fold_journal(self) -> bool:
        """Fold the journal into the file and cut it to nothing; False if a reader or writer was in the way. Never waits."""
        raw = self._connections.engine("write").raw_connection()
        try:
            return self.dialect.fold_journal(raw.driver_connection)
        finally:
            raw.close()

    # -- units of work -------------------------------------------------------------------------------------------------

    def run(self, op: Op, commands: Sequence[Any], *, within_seconds: float = WITHIN_SECONDS) -> Sequence[Any]:
        """Run `op` over `commands` in one transaction, commit, and give its outcomes.

        No new try begins after `within_seconds`. Guarantee: outcomes are given only after COMMIT was answered. Raises:
        Refusal (`database_unavailable`) when the tries or the time are spent; DatabaseBug for a statement that cannot
        work; any other error of the op unchanged. All of these after ROLLBACK.
        """
        memo: dict[Any, Any] = {}

        def once(connection: Connection, repeated: bool) -> tuple[Tx, Sequence[Any]]:  # noqa: FBT001
            tx = Tx(connection, self.dialect, self.clock.now(), self.host, self.clock.shift_micros, repeated, memo)
            return tx, self._once(tx, op, commands)

        tx, outcomes = self._attempt(once, "write", within_seconds)
        for callback in tx.after_commit:
            callback()
        return outcomes

    def _once(self, tx: Tx, op: Op, commands: Sequence[Any]) -> Sequence[Any]:
        transaction = tx.conn.begin()
        outcomes = op(tx, commands)
        if len(outcomes) != len(commands):
            raise RuntimeError(f"{op} gave {len(outcomes)} outcomes for {len(commands)} commands")
        if not self.dialect.can_commit(tx.conn):
            raise RuntimeError(f"{op} went on after an error that had ended its transaction")
        try:
            transaction.commit()
        except DBAPIError as error:
            raise CommitUnanswered(error) from None
        return outcomes

    def read(self, op: Callable[[Tx, Any], Any], command: Any, *, within_seconds: float = WITHIN_SECONDS) -> Any:
        """Run a reading op on a connection that cannot write (SQLite) or commits each statement (servers).

        Raises: as `run`.
        """

        def once(connection: Connection, _: bool) -> Any:  # noqa: FBT001
            with connection.begin():
                return op(Tx(connection, self.dialect, self.clock.now(), self.host, self.clock.shift_micros), command)

        return self._attempt(once, "read", within_seconds)

    def _attempt(self, once: Callable[[Connection, bool], Result], use: Use, within_seconds: float) -> Result:
        """The retry boundary: `once` is run from its first statement again, or its error goes to the caller."""
        deadline = time.monotonic() + within_seconds
        repeated = False
        for attempt in range(1, TRIES + 1):
            try:
                return self._try(once, use, repeated=repeated)
            except (DBAPIError, CommitUnanswered, NotConnected) as failure:
                error, fault = self._judge(failure)
                self._clean_up(error, fault, use)
                repeated = repeated or fault is Fault.UNKNOWN
                pause = random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt))
                spent = attempt == TRIES or time.monotonic() + pause >= deadline
                if fault is Fault.BUG or (spent and fault is Fault.DUPLICATE):
                    raise DatabaseBug(error).with_traceback(error.__traceback__) from None
                if spent:
                    raise unavailable() from None
                time.sleep(pause)
            except BaseException:
                self._connections.roll_back()
                raise
        raise AssertionError("the loop either returns or raises")

    def _try(self, once: Callable[[Connection, bool], Result], use: Use, *, repeated: bool) -> Result:
        try:
            held = self._connections.mine(use)
        except DBAPIError as error:
            raise NotConnected(error) from None
        with held.at_work() as connection:
            if self._measured != self._connections.generation:
                self._measure(connection)  # after a fault it may be another server, with another clock
            return once(connection, repeated)

    def _judge(self, failure: DBAPIError | CommitUnanswered | NotConnected) -> tuple[DBAPIError, Fault]:
        if isinstance(failure, NotConnected):
            return failure.error, Fault.GONE
        if isinstance(failure, CommitUnanswered):
            return failure.error, self.dialect.classify(failure.error, at_commit=True)
        return failure, self.dialect.classify(failure, at_commit=False)

    def _clean_up(self, error: DBAPIError, fault: Fault, use: Use) -> None:
        self.faults[fault.value] = self.faults.get(fault.value, 0) + 1
        if fault is Fault.BUG:
            log.error("database_error", error=kind(error), code=code(error))
        else:
            log.warning("database_fault", error=kind(error), code=code(error), fault=fault.value)
        if fault in (Fault.GONE, Fault.UNKNOWN):
            self._connections.doubt(use)
        else:
            self._connections.roll_back()


def _version(connection: Connection) -> str:
    return ".".join(str(part) for part in connection.dialect.server_version_info or ())
