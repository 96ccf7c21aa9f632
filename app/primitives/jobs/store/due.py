"""SQL of the sweeps: what is due, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select, update

from app.db.tx import Tx
from app.primitives.jobs.model import State
from app.primitives.jobs.store.values import HOT, IDS, Rows
from app.primitives.jobs.store.work import delete_claims
from app.primitives.jobs.tables import (
    DUE_INDEX,
    job_claims,
    job_contents,
    job_events,
    job_keys,
    job_progress,
    job_refs,
    job_results,
    jobs,
)


def lock_due(tx: Tx, state: State, most: int) -> Rows:
    """Jobs in `state` that are due, the longest due first, that nobody else holds; by the due index."""
    query = (
        select(*HOT)
        .where(jobs.c.state == int(state), jobs.c.due_at <= tx.now)
        .order_by(jobs.c.due_at, jobs.c.id)
        .limit(most)
    )
    return tx.conn.execute(tx.dialect.lock_free(tx.dialect.force_index(query, jobs, DUE_INDEX))).all()


def update_promoted(tx: Tx, ids: Sequence[bytes]) -> int:
    """scheduled -> available, where due."""
    change = (
        update(jobs)
        .where(jobs.c.id.in_(IDS), jobs.c.state == State.SCHEDULED, jobs.c.due_at <= tx.now)
        .values(state=State.AVAILABLE, due_at=None)
    )
    return tx.conn.execute(change, {"ids": list(ids)}).rowcount


def delete_jobs(tx: Tx, ids: Sequence[bytes]) -> None:
    """Everything there is of these jobs, the hot row last."""
    for column in (
        job_contents.c.job_id,
        job_results.c.job_id,
        job_progress.c.job_id,
        job_keys.c.job_id,
        job_refs.c.job_id,
        job_events.c.job_id,
        jobs.c.id,
    ):
        tx.conn.execute(delete(column.table).where(column.in_(IDS)), {"ids": list(ids)})


def delete_old_claims(tx: Tx, most: int) -> int:
    """Claim ids whose grants can no longer be held."""
    old = select(job_claims.c.digest).where(job_claims.c.purge_at <= tx.now).order_by(job_claims.c.purge_at).limit(most)
    digests = [row.digest for row in tx.conn.execute(tx.dialect.lock_free(old))]
    if digests:
        delete_claims(tx, digests)
    return len(digests)
