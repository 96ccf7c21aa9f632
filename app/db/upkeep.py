"""Reading ops of the service itself: the database's clock, where the schema stands, whether old rows can be cleared."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from app.clock import Clock, steady_micros
from app.db import migrate
from app.db.dialects.base import OpenTransactions
from app.db.tx import Tx


def read_clock(tx: Tx, clock: Clock) -> int:
    """Read the database's clock again; gives the step against the last measurement in microseconds."""
    before = steady_micros()
    database = int(tx.conn.execute(select(tx.dialect.now())).scalar_one())
    return clock.adopt((before + steady_micros()) // 2, database)


def read_schema(tx: Tx, _command: None) -> migrate.State:
    """Where the schema stands, seen from this release."""
    return migrate.compare(migrate.read_revision(tx))


@dataclass(frozen=True, slots=True)
class Clearing:
    """What may keep the database from clearing away rows that are finished; None is what this database does not have."""

    transactions: OpenTransactions | None
    journal_bytes: int | None


def read_clearing(tx: Tx, _command: None) -> Clearing:
    """What may keep the database from clearing away rows that are finished. Looks at no table."""
    return Clearing(tx.dialect.open_transactions(tx.conn), tx.dialect.journal_bytes(tx.conn.engine.url))
