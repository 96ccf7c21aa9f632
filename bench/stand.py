"""The stand: a private database server, the service as real processes on it, and what they use of the machine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx
from sqlalchemy import URL, NullPool, create_engine, func, make_url, select, text

from app.db import migrate
from app.primitives.jobs.model import State
from app.primitives.jobs.tables import (
    flows,
    job_contents,
    job_events,
    job_keys,
    job_limits,
    job_results,
    job_slots,
    job_uniques,
    jobs,
)
from app.primitives.outbox.tables import (
    outbox,
    outbox_contents,
    outbox_events,
    outbox_keys,
    outbox_lines,
    outbox_messages,
    outbox_places,
)
from tests.e2e.process import ServiceProcess
from tests.servers import Engine, Server, select_engines
from tests.servers.processes import family

BUFFER_BYTES = 2 * 1024**3  # room for the rows of the largest case; floor and service share it
_TUNING = {
    "mariadb": (
        f"SET GLOBAL innodb_buffer_pool_size={BUFFER_BYTES}",
        f"SET GLOBAL innodb_log_file_size={BUFFER_BYTES // 2}",
    ),
    "mysql": (
        f"SET GLOBAL innodb_buffer_pool_size={BUFFER_BYTES}",
        f"SET GLOBAL innodb_redo_log_capacity={BUFFER_BYTES // 2}",
    ),
    "postgresql": ("ALTER SYSTEM SET max_wal_size='4GB'", "SELECT pg_reload_conf()"),
}
_HOT = (
    jobs,
    job_contents,
    job_keys,
    job_results,
    job_events,
    job_uniques,
    job_slots,
    job_limits,
    outbox,
    outbox_messages,
    outbox_contents,
    outbox_keys,
    outbox_events,
    outbox_places,
    outbox_lines,
)


class Tables:
    """The job tables of one database, looked at and emptied from outside."""

    def __init__(self, url: str) -> None:
        self.url: URL = make_url(url)
        self.engine = create_engine(self.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        self.backend = self.engine.dialect.name

    @property
    def is_mariadb(self) -> bool:
        return bool(getattr(self.engine.dialect, "is_mariadb", False))

    def empty(self) -> None:
        """Remove every job and message; queues and flows stay, for processes remember them."""
        with self.engine.connect() as connection:
            for table in _HOT:
                connection.execute(table.delete() if self.backend == "sqlite" else text(f"TRUNCATE TABLE {table.name}"))

    def count(self, queue: str) -> dict[int, int]:
        """How many jobs of a queue are in each state."""
        query = (
            select(jobs.c.state, func.count())
            .join(flows, flows.c.id == jobs.c.flow_id)
            .where(flows.c.queue == queue)
            .group_by(jobs.c.state)
        )
        with self.engine.connect() as connection:
            return {int(state): int(count) for state, count in connection.execute(query)}

    def close(self) -> None:
        self.engine.dispose()


class Gauge:
    """Reads the server's own counters over one connection that it keeps. None where the server counts no such thing."""

    _STATEMENTS: ClassVar = "SHOW GLOBAL STATUS LIKE 'Questions'"
    _CONNECTIONS: ClassVar = {
        "mysql": "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    }

    def __init__(self, tables: Tables) -> None:
        self._backend = "mysql" if tables.backend == "mariadb" else tables.backend
        self._connection = tables.engine.connect()

    def statements(self) -> int | None:
        """Statements that the server has seen, this one included."""
        if self._backend != "mysql":
            return None
        return int(self._connection.execute(text(self._STATEMENTS)).one()[1])

    def connections(self) -> int | None:
        """Connections to the service's database but this one."""
        query = self._CONNECTIONS.get(self._backend)
        return None if query is None else int(self._connection.execute(text(query)).scalar_one())

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Use:
    """What the processes have used so far."""

    service_cpu: float
    database_cpu: float


class Stand:
    """`services` run on `url`; `floor_url` is a second database on the same server."""

    def __init__(self, engine: Engine, url: str, floor_url: str, services: list[ServiceProcess]) -> None:
        self.engine = engine
        self.url = url
        self.floor_url = floor_url
        self.services = services
        self.tables = Tables(url)

    @property
    def urls(self) -> list[str]:
        return [service.url for service in self.services]

    def use(self) -> Use:
        members = family(self.engine.pid) if isinstance(self.engine, Server) else []  # PostgreSQL: one for each client
        database = sum(_cpu_seconds(pid) for pid in members)
        return Use(sum(service.cpu_seconds() for service in self.services), database)

    def lanes(self) -> Counter[str]:
        """Commands and transactions of every lane so far, over all processes, by their names in /metrics."""
        seen: Counter[str] = Counter()
        for service in self.services:
            for line in httpx.get(f"{service.url}/metrics", trust_env=False, timeout=30).text.splitlines():
                if line.startswith(("tenure_lane_commands_total{", "tenure_lane_batches_total{")):
                    name, value = line.rsplit(" ", 1)
                    seen[name] += int(float(value))
        return seen

    def memory_mib(self) -> tuple[float, float]:
        """(now, highest so far) of the first service process."""
        status = _status(self.services[0].pid)
        return float(status["VmRSS"].split()[0]) / 1024, float(status["VmHWM"].split()[0]) / 1024

    def threads(self) -> int:
        return int(_status(self.services[0].pid)["Threads"])

    def states(self, queue: str) -> Mapping[State, int]:
        return {State(state): count for state, count in self.tables.count(queue).items()}


@contextmanager
def standing(engine_name: str, processes: int, **settings: Any) -> Iterator[Stand]:
    """Start everything, and end it whatever happens."""
    selection = select_engines({**os.environ, "TENURE_TEST_ENGINES": engine_name})
    if selection.refusal:
        raise RuntimeError(selection.refusal)
    engine = selection.found[engine_name]
    services: list[ServiceProcess] = []
    try:
        engine.start()
        urls = [engine.create_database() for _ in range(2)]
        for url in urls:
            migrate.upgrade(url)
        _tune(engine_name, urls[0])
        settings.setdefault("delivery_allowed_targets", "127.0.0.1")  # receivers of the outbox stand here
        services = [ServiceProcess(urls[0], log_level="warning", **settings) for _ in range(processes)]
        for service in services:
            service.start()
        stand = Stand(engine, urls[0], urls[1], services)
        yield stand
        stand.tables.close()
    finally:
        for service in services:
            service.close()
        engine.close()


def _tune(engine_name: str, url: str) -> None:
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in _TUNING.get(engine_name, ()):
            connection.execute(text(statement))
    engine.dispose()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
