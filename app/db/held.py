"""Columns of a table whose rows are held by one holder after the other (`app.holding`), and the fences of rows that are gone.

A fence never goes back, also where its row was purged and made anew. So each kind of thing has a floor: no purged row of it
had a higher fence, and a new row begins there. A row is purged only once it has been over for `SLACK_MICROS`: longer than any
transaction lives, so that one which has read the floor before cannot make the row again below it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, select, update

from app.clock import micros
from app.db.metadata import Digest, Moment, Past, Small
from app.db.tables import fence_floors
from app.db.tx import Tx

SLACK_MICROS = micros(60)


def held_columns() -> tuple[Column[Any], ...]:
    """Everything that `app.holding` reads of a row but when its lease ends."""
    return (
        Column("fence", Moment, nullable=False, server_default="0"),
        Column("ended", Small, nullable=False, server_default="0"),  # a `holding.End`
        Column("lease_micros", Moment),
        Column("grant_digest", Digest),  # of the newest reservation; stays after its end, for replays
        Column("settlement_digest", Digest),
        Column("claim_digest", Digest),
        Column("sealed", Digest),
        Column("past", Past),  # of the reservations before the newest
    )


def select_floor(tx: Tx, kind: str) -> int:
    """No purged row of this kind had a higher fence; by primary key."""
    found = tx.conn.execute(select(fence_floors.c.fence).where(fence_floors.c.kind == kind)).scalar_one_or_none()
    return found or 0


def raise_floor(tx: Tx, kind: str, fence: int) -> None:
    """Before rows with fences up to this one are deleted."""
    tx.conn.execute(tx.dialect.insert_missing(fence_floors, [{"kind": kind, "fence": 0}]))
    higher = update(fence_floors).where(fence_floors.c.kind == kind, fence_floors.c.fence < fence)
    tx.conn.execute(higher.values(fence=fence))
