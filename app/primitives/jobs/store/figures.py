"""SQL of the statistics: counts by state, sums of what the processes have seen, workers. Decisions never read these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Select, bindparam, delete, func, select

from app.db.tx import Tx
from app.primitives.jobs.store.values import Rows
from app.primitives.jobs.tables import CLAIM_INDEX, job_figures, job_workers, jobs

MOST_WORKERS = 1000


def _counts() -> Select[Any]:
    return select(
        jobs.c.flow_id, jobs.c.state, func.count().label("jobs"), func.min(jobs.c.available_at).label("oldest")
    ).group_by(jobs.c.flow_id, jobs.c.state)


def select_counts(tx: Tx) -> Rows:
    """(flow_id, state, jobs, oldest available_at) of all jobs; exact, by one pass over the claim index alone."""
    return tx.conn.execute(tx.dialect.force_index(_counts(), jobs, CLAIM_INDEX)).all()


def select_counts_of(tx: Tx, flow_ids: Sequence[int]) -> Rows:
    """The same of some flows; by their parts of the claim index."""
    query = _counts().where(jobs.c.flow_id.in_(bindparam("flows", expanding=True)))
    return tx.conn.execute(tx.dialect.force_index(query, jobs, CLAIM_INDEX), {"flows": list(flow_ids)}).all()


def select_sums(tx: Tx, since: int) -> Rows:
    """(flow_id, figure, amount) summed over the minutes from `since` on; by the minutes' index."""
    query = select(job_figures.c.flow_id, job_figures.c.figure, func.sum(job_figures.c.amount).label("amount")).where(
        job_figures.c.minute >= since
    )
    return tx.conn.execute(query.group_by(job_figures.c.flow_id, job_figures.c.figure)).all()


def select_workers(tx: Tx, since: int, queue: str | None = None) -> Rows:
    """Who was seen since then, the latest first, at most `MOST_WORKERS`; by the index of when. A small table."""
    query = select(job_workers).where(job_workers.c.seen_at >= since)
    if queue is not None:
        query = query.where(job_workers.c.queue == queue)
    return tx.conn.execute(query.order_by(job_workers.c.seen_at.desc()).limit(MOST_WORKERS)).all()


# -- the flush -------------------------------------------------------------------------------------------------------------


def add_figures(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add the amounts to those that are there; by primary key."""
    tx.conn.execute(tx.dialect.add_up(job_figures, rows, ["amount"]))


def upsert_workers(tx: Tx, rows: Sequence[Mapping[str, Any]], changes: Sequence[str]) -> None:
    """Make the rows; where a worker is known in a queue, only `changes` are set. By primary key."""
    tx.conn.execute(tx.dialect.upsert(job_workers, rows, changes))


def delete_old_figures(tx: Tx, before: int, most_minutes: int) -> int:
    """Forget the oldest minutes before then, a few at a time; by the minutes' index. Gives the number of rows."""
    old = select(job_figures.c.minute).where(job_figures.c.minute < before).distinct().order_by(job_figures.c.minute)
    minutes = list(tx.conn.execute(old.limit(most_minutes)).scalars())
    if not minutes:
        return 0
    return tx.conn.execute(delete(job_figures).where(job_figures.c.minute.in_(minutes))).rowcount


def delete_old_workers(tx: Tx, before: int, most: int) -> int:
    """Forget who was not seen since then, a few at a time; found by the index of when, deleted by primary key."""
    old = select(job_workers.c.digest).where(job_workers.c.seen_at < before).order_by(job_workers.c.seen_at)
    digests = list(tx.conn.execute(old.limit(most)).scalars())
    if not digests:
        return 0
    gone = delete(job_workers).where(job_workers.c.digest.in_(digests), job_workers.c.seen_at < before)
    return tx.conn.execute(gone).rowcount
