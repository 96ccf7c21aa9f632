"""SQL that a terminal handler's job is made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select

from app.db.tx import Tx
from app.primitives.jobs.model import Kind
from app.primitives.jobs.store.values import IDS, Rows
from app.primitives.jobs.tables import job_contents, job_events


def select_origins(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """Where these jobs came from: their contents; by primary key."""
    return tx.conn.execute(select(job_contents).where(job_contents.c.job_id.in_(IDS)), {"ids": list(ids)}).all()


def select_last_errors(tx: Tx, ids: Sequence[bytes]) -> dict[bytes, dict[str, Any]]:
    """The newest failure that a worker reported of each of these jobs, by job; by the events' primary key."""
    place = func.row_number().over(
        partition_by=job_events.c.job_id, order_by=(job_events.c.at.desc(), job_events.c.id.desc())
    )
    told = (
        select(
            job_events.c.job_id,
            job_events.c.at,
            job_events.c.category,
            job_events.c.message,
            job_events.c.reference,
            place.label("place"),
        )
        .where(job_events.c.job_id.in_(IDS), job_events.c.kind.in_([Kind.FAILED.value, Kind.UNKNOWN.value]))
        .subquery()
    )
    found = tx.conn.execute(select(told).where(told.c.place == 1), {"ids": list(ids)}).mappings()
    return {row["job_id"]: {str(name): value for name, value in row.items()} for row in found}
