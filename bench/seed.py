"""Puts very many jobs into the tables by SQL alone, a hundred thousand rows a statement."""

from __future__ import annotations

import time

from sqlalchemy import Connection, func, select, text

from app.clock import MICROS
from app.primitives.jobs.model import State
from app.primitives.jobs.tables import flows, job_contents, jobs
from bench.stand import Tables
from bench.tape import PAYLOAD

CHUNK = 100_000
WEEK = 7 * 24 * 3600 * MICROS

# sixteen digits are sixteen bytes: an id that sorts by its number
_ID = {
    "mariadb": "CAST(LPAD(i, 16, '0') AS BINARY(16))",
    "mysql": "CAST(LPAD(i, 16, '0') AS BINARY(16))",
    "postgresql": "convert_to(lpad(i::text, 16, '0'), 'UTF8')",
    "sqlite": "CAST(printf('%016d', i) AS BLOB)",
}
_PREPARE = {
    "mariadb": ("SET SESSION max_recursive_iterations=10000000", "SET GLOBAL innodb_flush_log_at_trx_commit=0"),
    "mysql": ("SET SESSION cte_max_recursion_depth=10000000", "SET GLOBAL innodb_flush_log_at_trx_commit=0"),
}
_RESTORE = {
    "mariadb": ("SET GLOBAL innodb_flush_log_at_trx_commit=1",),
    "mysql": ("SET GLOBAL innodb_flush_log_at_trx_commit=1",),
}


def fill(tables: Tables, queue: str, wanted: dict[State, int]) -> None:
    """Add so many jobs in each state to a queue that exists. Only available ones get contents: nobody reads the others'."""
    engine = "mariadb" if tables.is_mariadb else tables.backend
    with tables.engine.connect() as connection:
        flow_id = connection.execute(select(flows.c.id).where(flows.c.queue == queue)).scalars().one()
        start = int(connection.execute(select(func.count()).select_from(jobs)).scalar_one())
        for statement in _PREPARE.get(engine, ()):
            connection.execute(text(statement))
        try:
            for state, count in wanted.items():
                for first in range(start, start + count, CHUNK):
                    last = min(first + CHUNK, start + count)
                    _chunk(connection, engine, flow_id, state, first, last)
                start += count
        finally:
            for statement in _RESTORE.get(engine, ()):
                connection.execute(text(statement))


def _chunk(connection: Connection, engine: str, flow_id: int, state: State, first: int, last: int) -> None:
    numbers = f"WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last - 1})"
    now = time.time_ns() // 1000
    due = {State.AVAILABLE: "NULL", State.SCHEDULED: f"{now + WEEK} + i"}.get(state, f"{now + WEEK}")
    available = f"{now + WEEK} + i" if state is State.SCHEDULED else f"{now - WEEK} + i"
    ended = str(now) if state is State.SUCCEEDED else "NULL"
    connection.execute(text(
        f"INSERT INTO {jobs.name} (id, flow_id, state, priority, available_at, due_at, fence, attempt, lease_losses, "
        f"releases, throttles, max_attempts, timeout_micros, created_at, ended_at) {numbers} "
        f"SELECT {_ID[engine]}, {flow_id}, {int(state)}, 0, {available}, {due}, 0, 0, 0, 0, 0, 5, {WEEK}, {now}, {ended} FROM n"
    ))  # fmt: skip
    if state is State.AVAILABLE:
        connection.execute(
            text(
                f"INSERT INTO {job_contents.name} (job_id, payload, request_id, created_by) {numbers} "
                f"SELECT {_ID[engine]}, :payload, 'seed', 'bench' FROM n"
            ),
            {"payload": PAYLOAD},
        )
