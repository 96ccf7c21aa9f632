"""PostgreSQL 13 and later over psycopg 3."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from sqlalchemy import URL, BigInteger, ColumnElement, Connection, Executable, Table, literal_column
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError

from app.db.dialects.base import DDL_LOCK_SECONDS, Dialect, Fault, OpenTransactions, TransactionGuard

log = structlog.get_logger("tenure.db")

ROLLED_BACK = {"40001", "40P01", "55P03", "57014"}
SURELY_AT_COMMIT = {"40001", "40P01"}
# read-only, idle in transaction for too long; connection faults, out of resources, shut down by an operator
NOT_SERVING = {"25006", "25P03"}
NOT_SERVING_CLASSES = ("08", "53", "57P", "58")
UNIQUE_VIOLATION = "23505"
IN_ERROR = 3  # libpq's PQTRANS_INERROR; the driver is an optional package, so nothing is imported from it

# Prepared ones outlive their session. A stranger's transaction shows that it is open, and not since when. The server's own
# vacuum hinders nobody.
OPEN_TRANSACTIONS = """
SELECT max(extract(epoch FROM clock_timestamp() - began))::float8, count(*) FILTER (WHERE began IS NULL)
FROM (
  SELECT xact_start FROM pg_stat_activity
  WHERE datname = current_database() AND usesysid IS NOT NULL AND pid <> pg_backend_pid()
    AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
  UNION ALL SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()
) AS transactions (began)
"""


# For each statement, not for each row: the default of a serial column is taken before, and every 32nd gives the transaction its
# number. Not by `now() = statement_timestamp()`: each message of the extended protocol has a time of its own.
GUARD = """
CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $guard$
BEGIN
  IF pg_current_xact_id_if_assigned() IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = '45000',
      MESSAGE = '{name}: this INSERT stands outside of a transaction, or before any change of it',
      HINT = 'Make your own change first, and this INSERT in the same transaction; or: tenure outbox guard off.';
  END IF;
  RETURN NULL;
END $guard$
"""
COUNT_TRIGGERS = "SELECT count(*) FROM pg_trigger WHERE tgrelid = '{table}'::regclass AND tgname = '{name}'"


class PostgreSQL(Dialect):
    name = "postgresql"
    triggers_see_transactions = True
    transactional_ddl = True
    waits_without_end = True

    def engine_options(self, url: URL) -> dict[str, Any]:
        return {
            "isolation_level": "READ COMMITTED",
            "connect_args": {
                "connect_timeout": 3,
                "keepalives_idle": 5,
                "keepalives_interval": 3,
                "keepalives_count": 3,
                "tcp_user_timeout": 20_000,
            },
        }

    def on_connect(self, connection: Any, *, read_only: bool) -> None:
        _set(
            connection,
            "TIME ZONE 'UTC'",
            "lock_timeout = '3s'",
            f"statement_timeout = '{self.statement_seconds}s'",
            "idle_in_transaction_session_timeout = '15s'",
        )

    def on_connect_ddl(self, connection: Any) -> None:
        _set(
            connection,
            f"lock_timeout = '{DDL_LOCK_SECONDS}s'",
            "statement_timeout = 0",
            "idle_in_transaction_session_timeout = 0",
        )

    def now(self) -> ColumnElement[int]:
        # clock_timestamp, not now(): that one stands still from the transaction's start
        return literal_column("(extract(epoch from clock_timestamp())*1000000)::bigint", BigInteger())

    def classify(self, fault: DBAPIError, *, at_commit: bool) -> Fault:
        code = getattr(fault.orig, "sqlstate", None)
        if at_commit:
            return Fault.RETRY if code in SURELY_AT_COMMIT else Fault.UNKNOWN
        if code in ROLLED_BACK:
            return Fault.RETRY
        if code is None:
            # psycopg tells of a lost or refused connection by an OperationalError without a SQLSTATE
            return Fault.GONE if isinstance(fault, InterfaceError | OperationalError) else Fault.BUG
        if code in NOT_SERVING or code.startswith(NOT_SERVING_CLASSES) or fault.connection_invalidated:
            return Fault.GONE
        if isinstance(fault, IntegrityError) and code == UNIQUE_VIOLATION:
            return Fault.DUPLICATE
        return Fault.BUG

    def can_commit(self, connection: Connection) -> bool:
        driver: Any = connection.connection.driver_connection
        return bool(driver.info.transaction_status != IN_ERROR)

    def cut(self, connection: Connection) -> None:
        try:
            driver: Any = connection.connection.driver_connection
            # a duplicate: the number may be closed and given to another file while we look
            with socket.socket(fileno=os.dup(driver.fileno())) as twin:
                twin.shutdown(socket.SHUT_RDWR)
        except Exception as error:  # noqa: BLE001 - the connection's own thread may end it in this moment, in any way
            log.info("connection_not_cut", error=type(error).__name__)

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

    def transaction_guard(self, name: str, table: str) -> TransactionGuard:
        return TransactionGuard(
            create=(
                GUARD.format(name=name),
                f"CREATE TRIGGER {name} BEFORE INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {name}()",
            ),
            drop=(f"DROP FUNCTION IF EXISTS {name}() CASCADE",),
            count=COUNT_TRIGGERS.format(table=table, name=name),
            refuses="an INSERT before which its transaction has changed and locked nothing",
        )

    def open_transactions(self, connection: Connection) -> OpenTransactions | None:
        age, strangers = connection.exec_driver_sql(OPEN_TRANSACTIONS).one()
        if not strangers:
            return OpenTransactions(max(0.0, age or 0.0))
        return OpenTransactions(age, f"{strangers} of other accounts; this one has not the role pg_read_all_stats")

    def server_checks(self, connection: Connection) -> list[tuple[str, bool, str]]:
        def shown(name: str) -> str:
            return str(connection.exec_driver_sql(f"SHOW {name}").scalar())

        recovering = bool(connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar())
        fsync, commit = shown("fsync"), shown("synchronous_commit")
        return [
            ("durable_commit", fsync == "on" and commit != "off", f"fsync={fsync} synchronous_commit={commit}"),
            ("writable", not recovering, f"pg_is_in_recovery={str(recovering).lower()}"),
        ]

    def most_connections(self, connection: Connection) -> int | None:
        most = int(connection.exec_driver_sql("SHOW max_connections").scalar_one())
        return most - int(connection.exec_driver_sql("SHOW superuser_reserved_connections").scalar_one())


def _set(connection: Any, *settings: str) -> None:
    """Set for the session: inside a transaction a ROLLBACK would take it back."""
    before = connection.autocommit
    connection.autocommit = True
    for setting in settings:
        connection.execute(f"SET {setting}")
    connection.autocommit = before
