"""SQL of unique and debounce keys: who holds one, and what a newer enqueue makes of its holder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, delete, insert, or_, select, update

from app.db.tx import Tx
from app.primitives.jobs.model import WAITING
from app.primitives.jobs.store.values import HOT, IDS, Rows
from app.primitives.jobs.tables import job_contents, job_refs, job_uniques, jobs

_DIGESTS: Any = bindparam("digests", expanding=True)


def select_holders(tx: Tx, digests: Sequence[bytes]) -> Rows:
    """The jobs that hold these keys, with `digest`, `latest_at`, `newest`; without a lock, by the unique index."""
    query = (
        select(*HOT, job_uniques.c.digest, job_uniques.c.latest_at, job_uniques.c.newest)
        .join_from(job_uniques, jobs, jobs.c.id == job_uniques.c.job_id)
        .where(job_uniques.c.holding.in_(_DIGESTS))
    )
    return tx.conn.execute(query, {"digests": list(digests)}).all()


def select_uniques(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """The keys of these jobs, held or not; by primary key, ascending."""
    query = select(job_uniques).where(job_uniques.c.job_id.in_(IDS)).order_by(job_uniques.c.job_id)
    return tx.conn.execute(query, {"ids": list(ids)}).all()


def insert_uniques(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """The unique index decides between two enqueues with one key: the later one fails as a duplicate."""
    tx.conn.execute(insert(job_uniques), list(rows))


def update_released(tx: Tx, ids: Sequence[bytes]) -> None:
    """These jobs keep nobody out any more; by primary key."""
    change = update(job_uniques).where(job_uniques.c.job_id.in_(IDS)).values(holding=None)
    tx.conn.execute(change, {"ids": list(ids)})


def update_taken(tx: Tx, ids: Sequence[bytes]) -> None:
    """These jobs hold their keys again. Fails as a duplicate where another job took one a moment ago."""
    change = update(job_uniques).where(job_uniques.c.job_id.in_(IDS)).values(holding=job_uniques.c.digest)
    tx.conn.execute(change, {"ids": list(ids)})


def update_newest(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Whose contents these jobs have now (`b_id`, `b_latest_at`, `b_newest`); by primary key."""
    change = (
        update(job_uniques)
        .where(job_uniques.c.job_id == bindparam("b_id"))
        .values(latest_at=bindparam("b_latest_at"), newest=bindparam("b_newest"))
    )
    tx.conn.execute(change, list(rows))


def delete_uniques(tx: Tx, ids: Sequence[bytes]) -> None:
    tx.conn.execute(delete(job_uniques).where(job_uniques.c.job_id.in_(IDS)), {"ids": list(ids)})


# -- the holder gets other contents ----------------------------------------------------------------------------------------

_REPLACED = (
    "flow_id",
    "state",
    "priority",
    "available_at",
    "due_at",
    "marks",
    "max_attempts",
    "timeout_micros",
    "retry_until",
    "lease_micros",
)


def update_replaced(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> int:
    """Waiting jobs that were never started: what each row says (`b_id`, `b_…`). Gives the number of rows that it matched.

    No IN: a statement for many rows at once takes none.
    """
    change = (
        update(jobs)
        .where(
            jobs.c.id == bindparam("b_id"), or_(*(jobs.c.state == int(state) for state in WAITING)), jobs.c.attempt == 0
        )
        .values({name: bindparam(f"b_{name}", type_=jobs.c[name].type) for name in _REPLACED})
    )
    return tx.conn.execute(change, list(rows)).rowcount


def update_contents(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """What was sent with each job (`job_id`, …), in place of what was sent before; by primary key."""
    names = [name for name in rows[0] if name != "job_id"]
    change = (
        update(job_contents)
        .where(job_contents.c.job_id == bindparam("b_job_id"))
        .values({name: bindparam(f"b_{name}", type_=job_contents.c[name].type) for name in names})
    )
    tx.conn.execute(change, [{f"b_{name}": value for name, value in row.items()} for row in rows])


def delete_refs(tx: Tx, ids: Sequence[bytes]) -> None:
    """What these jobs were found by; by the references' index of jobs."""
    tx.conn.execute(delete(job_refs).where(job_refs.c.job_id.in_(IDS)), {"ids": list(ids)})
