"""Reading ops of the service itself: the database's clock and where the schema stands."""

from __future__ import annotations

from sqlalchemy import select

from app.clock import Clock, steady_micros
from app.db import migrate
from app.db.tx import Tx


def read_clock(tx: Tx, clock: Clock) -> int:
    """Read the database's clock again; gives the step against the last measurement in microseconds."""
    before = steady_micros()
    database = int(tx.conn.execute(select(tx.dialect.now())).scalar_one())
    return clock.adopt((before + steady_micros()) // 2, database)


def read_schema(tx: Tx, _command: None) -> migrate.State:
    """Where the schema stands, seen from this release."""
    return migrate.compare(migrate.read_revision(tx))
