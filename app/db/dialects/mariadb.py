"""MariaDB 10.6 and later over PyMySQL: MySQL but for the statement limit, what a trigger sees, and Galera."""

from __future__ import annotations

from typing import Any

from app.db.dialects.mysql import MySQL


class MariaDB(MySQL):
    name = "mariadb"

    def _limit_statements(self, cursor: Any, seconds: int) -> None:
        cursor.execute(f"SET max_statement_time={seconds}")

    def _outside(self) -> str:
        return "@@in_transaction = 0"

    def _proof(self) -> str | None:
        return None

    def on_connect(self, connection: Any, *, read_only: bool) -> None:
        super().on_connect(connection, read_only=read_only)
        with connection.cursor() as cursor:
            self._see_other_nodes(cursor)

    def _see_other_nodes(self, cursor: Any) -> None:
        cursor.execute("SHOW VARIABLES LIKE 'wsrep_on'")
        row = cursor.fetchone()
        if row is not None and row[1] == "ON":
            # without it a worker's settlement on another node does not see the claim yet, and is told 409 wrongly
            cursor.execute("SET wsrep_sync_wait=7")
            self.locks_are_local = True
