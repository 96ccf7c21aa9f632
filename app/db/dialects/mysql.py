"""MySQL 8.0 and later over PyMySQL. MariaDB (its own file) inherits what is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import URL, BigInteger, ColumnElement, Connection, Executable, Select, Table, and_, literal_column, or_
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError

from app.db.dialects.base import DDL_LOCK_SECONDS, Dialect, Fault, OpenTransactions, TransactionGuard
from app.db.metadata import PREFIX

# The session waits at most 3 s for a row, then the unit is run again; the socket waits longer than any of it, so that the
# server answers before we give up (a statement goes on after its client has gone).
SOCKET_SECONDS = 20
SESSION = (
    "SET time_zone='+00:00', "
    "sql_mode='STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', "
    "innodb_lock_wait_timeout=3, lock_wait_timeout=5"
)
ROLLED_BACK = {1213, 1020, 1205, 3572}
SURELY_AT_COMMIT = {1213, 1020}
NOT_SERVING = {
    1040,
    1203,
    1226,  # too many connections
    1021,
    1037,
    1041,
    1114,
    3019,  # out of disk, memory, table or undo space
    1047,
    1053,
    1180,
    1927,
    3032,
    3169,
    4031,  # not in the primary component, shutting down, killed, offline
    1290,
    1792,
    1836,  # read-only
    1158,
    1159,
    1160,
    1161,
    2002,
    2003,
    2006,
    2013,
    2014,
    2027,
    2045,
    2055,  # the network
}
CUT_SHORT = {1317, 1969, 3024}  # killed or over its time: the transaction is rolled back by us
DUPLICATE_KEY = {1062}
NOT_PRIVILEGED = {1227}
# at most 128 characters
OUTSIDE = "{name}: INSERT outside a transaction; put it into that of your change (tenure outbox guard off)"
# MySQL shows no session whether it is in a transaction. `trx_started` and its kin are a copy that may be a tenth of a second old.
THIS_TRANSACTION = (
    "SELECT COUNT(*) FROM performance_schema.events_transactions_current "
    "WHERE thread_id = PS_CURRENT_THREAD_ID() AND state = 'ACTIVE' AND autocommit = '{autocommit}'"
)
COUNT_TRIGGERS = (
    "SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = DATABASE() AND trigger_name = '{name}'"
)


class MySQL(Dialect):
    name = "mysql"
    triggers_see_transactions = True

    def engine_options(self, url: URL) -> dict[str, Any]:
        return {
            "isolation_level": "READ COMMITTED",
            "connect_args": {
                "charset": "utf8mb4",
                "connect_timeout": 3,
                "read_timeout": SOCKET_SECONDS,
                "write_timeout": SOCKET_SECONDS,
            },
        }

    def ddl_options(self, url: URL) -> dict[str, Any]:
        options = self.engine_options(url)
        options["connect_args"] |= {"read_timeout": None, "write_timeout": None}
        return options

    def connect(self, arguments: Mapping[str, Any]) -> Any | None:
        from app.db.dialects.pymysql_connection import SharedContext  # noqa: PLC0415 - the driver; others do without

        return SharedContext(**arguments)

    def on_connect_ddl(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_wait_timeout={DDL_LOCK_SECONDS}, innodb_lock_wait_timeout={DDL_LOCK_SECONDS}")
            self._limit_statements(cursor, 0)

    def on_connect(self, connection: Any, *, read_only: bool) -> None:
        with connection.cursor() as cursor:
            cursor.execute(SESSION)
            self._limit_statements(cursor, self.statement_seconds)

    def _limit_statements(self, cursor: Any, seconds: int) -> None:
        cursor.execute(f"SET max_execution_time={seconds * 1000}")

    def now(self) -> ColumnElement[int]:
        # no way through local time, whose last hour of summer comes twice, whatever the session's zone
        return literal_column("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))", BigInteger())

    def classify(self, fault: DBAPIError, *, at_commit: bool) -> Fault:
        code = fault.orig.args[0] if fault.orig is not None and fault.orig.args else 0
        if at_commit:
            return Fault.RETRY if code in SURELY_AT_COMMIT else Fault.UNKNOWN
        if code in ROLLED_BACK or code in CUT_SHORT:
            return Fault.RETRY
        if code in NOT_SERVING or isinstance(fault, InterfaceError) or fault.connection_invalidated:
            return Fault.GONE
        if isinstance(fault, IntegrityError) and code in DUPLICATE_KEY:
            return Fault.DUPLICATE
        return Fault.BUG

    def force_index(self, query: Select[Any], table: Table, index: str) -> Select[Any]:
        return query.with_hint(table, f"FORCE INDEX ({index})")

    def at_or_after(
        self, columns: Sequence[ColumnElement[Any]], values: Sequence[ColumnElement[Any]]
    ) -> ColumnElement[bool]:
        # row comparisons are not used for an index here; this form is, as two ranges
        (first, second), (one, two) = columns, values
        return or_(first > one, and_(first == one, second >= two))

    def insert_missing(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> Executable:
        first = next(iter(table.primary_key)).name
        statement = insert(table).values(list(rows))
        # not INSERT IGNORE, which would also swallow a truncation
        return statement.on_duplicate_key_update({first: table.c[first]})

    def upsert(self, table: Table, rows: Sequence[Mapping[str, Any]], changes: Sequence[str]) -> Executable:
        statement = insert(table).values(list(rows))
        return statement.on_duplicate_key_update({name: statement.inserted[name] for name in changes})

    def add_up(self, table: Table, rows: Sequence[Mapping[str, Any]], sums: Sequence[str]) -> Executable:
        statement = insert(table).values(list(rows))
        return statement.on_duplicate_key_update({name: table.c[name] + statement.inserted[name] for name in sums})

    def transaction_guard(self, name: str, table: str) -> TransactionGuard:
        refuse = f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{OUTSIDE.format(name=name)}'"
        when = f"IF ({self._outside()}) THEN {refuse}; END IF"
        return TransactionGuard(
            create=(f"CREATE TRIGGER {name} BEFORE INSERT ON {table} FOR EACH ROW BEGIN {when}; END",),
            drop=(f"DROP TRIGGER IF EXISTS {name}",),
            count=COUNT_TRIGGERS.format(name=name),
            refuses="every INSERT in autocommit",
            proof=self._proof(),
        )

    def _outside(self) -> str:
        """In a trigger: true if the statement is a transaction of its own."""
        return THIS_TRANSACTION.format(autocommit="YES")

    def _proof(self) -> str | None:
        return THIS_TRANSACTION.format(autocommit="NO")

    def open_transactions(self, connection: Connection) -> OpenTransactions | None:
        # Of all databases: they share one purge. The view's times are in the zone of the server's host, not the session's;
        # it is a copy, renewed for whoever comes when nobody has looked for a tenth of a second.
        try:
            age = connection.exec_driver_sql(
                "SELECT TIMESTAMPDIFF(SECOND, CONVERT_TZ(MIN(trx_started), 'SYSTEM', '+00:00'), UTC_TIMESTAMP()) "
                "FROM information_schema.innodb_trx"
            ).scalar()
        except OperationalError as denied:
            if denied.orig is None or denied.orig.args[0] not in NOT_PRIVILEGED:
                raise
            return OpenTransactions(None, "this account has not the privilege PROCESS")
        return OpenTransactions(max(0.0, float(age or 0)))

    def server_checks(self, connection: Connection) -> list[tuple[str, bool, str]]:
        seen: dict[str, str] = dict(
            connection.exec_driver_sql(
                "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', "
                "'binlog_format', 'read_only', 'super_read_only', 'wsrep_on')"
            ).all()
        )
        binlog = seen.get("log_bin") == "ON"
        flush, sync = seen.get("innodb_flush_log_at_trx_commit", "?"), seen.get("sync_binlog", "?")
        formatted = seen.get("binlog_format", "ROW")
        return [
            self._tables(connection),
            ("durable_commit", flush == "1", f"innodb_flush_log_at_trx_commit={flush}"),
            ("durable_binlog", not binlog or sync == "1", f"log_bin={seen.get('log_bin', '?')} sync_binlog={sync}"),
            ("binlog_format", not binlog or formatted in ("ROW", "MIXED"), f"binlog_format={formatted}"),
            ("writable", seen.get("read_only") == "OFF", f"read_only={seen.get('read_only', '?')}"),
        ]

    def _tables(self, connection: Connection) -> tuple[str, bool, str]:
        """A server whose default was changed, or an import, may have made tables that know no transactions."""
        others = connection.exec_driver_sql(
            "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE() "
            "AND table_type = 'BASE TABLE' AND engine <> 'InnoDB' AND table_name LIKE %s",
            (PREFIX.replace("_", r"\_") + "%",),
        ).all()
        return "table_engine", not others, ", ".join(f"{name} is {engine}" for name, engine in others) or "all InnoDB"

    def most_connections(self, connection: Connection) -> int | None:
        return int(connection.exec_driver_sql("SELECT @@max_connections").scalar_one())
