"""The floor: what one bare connection does with the very same statements at the same batch size.

The ops are run once on a scratch database while every statement and its parameters are written down (`record`). The tables
are emptied and the statements are replayed by a bare driver connection (`Tape.play`): no HTTP, no SQLAlchemy, no Python
but the driver's own. As the ids are the same and the queue is the same, the replay does the same work on the same rows,
which is checked at its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event

from app import settings
from app.access import ANONYMOUS
from app.clock import micros
from app.db import engines
from app.db.database import Database
from app.main import assemble
from app.primitives.jobs.model import Caller, Claim, Enqueue, NewJob, Outcome, Settle, Settlement, State, new_id
from app.primitives.jobs.ops.claim import claim
from app.primitives.jobs.ops.enqueue import enqueue
from app.primitives.jobs.ops.settle import settle
from app.reservations import settlement_digest
from bench.stand import Tables

CALLER = Caller(ANONYMOUS, "bench-request-0000000000")
QUEUE = "floor"
PAYLOAD = b'{"order":98127364,"customer":"c-5521","lines":[{"sku":"A-77","count":2},{"sku":"B-12","count":1}]}'
VERBS = ("enqueue", "claim", "settle")


@dataclass(frozen=True, slots=True)
class Statement:
    sql: str
    parameters: Any
    many: bool


@dataclass(slots=True)
class Tape:
    """Transactions of each verb at one batch size. `rates` gives jobs per second of the last `play`."""

    batch: int
    units: dict[str, list[list[Statement]]] = field(default_factory=dict)

    @property
    def jobs(self) -> int:
        return self.batch * len(self.units["enqueue"])

    def play(self, connection: Any, tables: Tables) -> dict[str, float]:
        """Empty the tables, run every unit, one verb after the other; jobs per second by verb."""
        tables.empty()
        rates = {verb: self.jobs / timed_units(connection, self.units[verb]) for verb in VERBS}
        done = tables.count(QUEUE).get(State.SUCCEEDED, 0)
        if done != self.jobs:
            raise RuntimeError(f"the floor ended {done} jobs of {self.jobs}: its statements do not do the work")
        return rates


def timed_units(connection: Any, units: Sequence[Sequence[Statement]]) -> float:
    """Seconds that these transactions take on a bare connection, one after the other."""
    cursor = connection.cursor()
    began = time.perf_counter()
    for unit in units:
        for statement in unit:
            if statement.many:
                cursor.executemany(statement.sql, statement.parameters)
            else:
                cursor.execute(statement.sql, statement.parameters)
            if cursor.description is not None:
                cursor.fetchall()
        connection.commit()
    spent = time.perf_counter() - began
    cursor.close()
    return spent


class Floor:
    """A scratch database with its recordings and one bare connection."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.database.open()
        self.runtime = assemble(settings.load(), self.database, loops=False)
        self.tables = Tables(url)
        self._tapes: dict[int, Tape] = {}
        self._raw = engines.make(self.database.dialect, self.tables.url, "write").raw_connection()

    def record(self, batch: int, units: int) -> None:
        """Run `units` lives of `batch` jobs through the real ops and keep their statements."""
        self._run(enqueue, Enqueue(_jobs(batch), CALLER))  # the flow comes to be outside the recording
        self.tables.empty()
        tape = Tape(batch)
        fresh = [_jobs(batch) for _ in range(units)]
        tape.units["enqueue"] = [self.kept(enqueue, Enqueue(jobs, CALLER))[0] for jobs in fresh]
        tape.units["claim"], tape.units["settle"] = [], []
        for _ in range(units):
            wanted = Claim((QUEUE,), (), "bench", batch, micros(7200), CALLER)
            statements, claimed = self.kept(claim, wanted)
            tape.units["claim"].append(statements)
            items = tuple(
                Settlement(grant.id, grant.token, Outcome.SUCCEEDED, settlement_digest("succeeded"))
                for grant in claimed.grants
            )
            tape.units["settle"].append(self.kept(settle, Settle(items, CALLER))[0])
        self._tapes[batch] = tape

    def measure(self, batch: int, passes: int = 1) -> dict[str, float]:
        """Jobs per second by verb, and of `work` (claim and settle) and `life` (all three); the best of the passes."""
        best: dict[str, float] = {}
        for _ in range(passes):
            for verb, rate in self._tapes[batch].play(self.connection, self.tables).items():
                best[verb] = max(rate, best.get(verb, 0.0))
        best["work"] = 1 / (1 / best["claim"] + 1 / best["settle"])
        best["life"] = 1 / (1 / best["work"] + 1 / best["enqueue"])
        return best

    @property
    def recorded(self) -> list[int]:
        return sorted(self._tapes)

    def statements(self, batch: int) -> dict[str, list[str]]:
        """The text of one unit of each verb, to be read by people."""
        return {verb: [one.sql for one in units[0]] for verb, units in self._tapes[batch].units.items()}

    def close(self) -> None:
        self._raw.close()
        self.tables.close()
        self.database.shutdown()

    @property
    def connection(self) -> Any:
        """The bare connection."""
        return self._raw.driver_connection

    def _run(self, op: Callable[..., Any], command: Any) -> Any:
        (outcome,) = self.database.run(op, [command])
        return outcome

    def kept(self, op: Callable[..., Any], command: Any) -> tuple[list[Statement], Any]:
        """Run one command through an op: its statements, and its outcome."""
        with _recording() as statements:
            outcome = self._run(op, command)
        return statements, outcome


def _jobs(count: int) -> tuple[NewJob, ...]:
    return tuple(NewJob(new_id(), (QUEUE, "bench.work", 1), PAYLOAD) for _ in range(count))


@contextmanager
def _recording() -> Iterator[list[Statement]]:
    statements: list[Statement] = []

    def keep(_conn: Any, _cursor: Any, sql: str, parameters: Any, _context: Any, many: bool) -> None:  # noqa: FBT001
        statements.append(Statement(sql, parameters, many))

    event.listen(Engine, "before_cursor_execute", keep)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", keep)
