"""SQL of concurrency keys: the lock on a key, the places at it, and who comes next.

Whoever changes a place, or the state of a job that has one, from or to "has a slot" holds the key's row of `job_limits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    Integer,
    Row,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    select,
    union_all,
    update,
)

from app.db.dialects.base import Dialect
from app.db.tx import Tx
from app.primitives.jobs.model import Place, State
from app.primitives.jobs.store.values import IDS, Rows
from app.primitives.jobs.tables import LINE_INDEX, job_limits, job_slots, jobs

MOST_PARTS = 100  # of one UNION
_DIGESTS: Any = bindparam("digests", expanding=True)

# -- keys ------------------------------------------------------------------------------------------------------------------


def lock_limits(tx: Tx, digests: Sequence[bytes]) -> Rows:
    """The rows of these keys, locked in the order of their digests."""
    query = select(job_limits).where(job_limits.c.digest.in_(_DIGESTS)).order_by(job_limits.c.digest)
    return tx.conn.execute(tx.dialect.lock(query), {"digests": list(digests)}).all()


def update_turns(tx: Tx, digests: Sequence[bytes]) -> None:
    """Write the rows of these keys, which are locked: of two nodes that do so at once, one is refused at its COMMIT."""
    change = update(job_limits).where(job_limits.c.digest.in_(_DIGESTS)).values(turn=job_limits.c.turn + 1)
    tx.conn.execute(change, {"digests": list(digests)})


def insert_missing_limits(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """In the order of their digests, as they are locked."""
    tx.conn.execute(tx.dialect.insert_missing(job_limits, rows))


def update_limits(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """The newest limit and the last position of keys that are locked; by primary key."""
    tx.conn.execute(tx.dialect.upsert(job_limits, rows, ["most", "last_position"]))


def delete_empty_limits(tx: Tx, digests: Sequence[bytes]) -> None:
    """Those of these keys, which are locked, that no job has any more; one look at the line's index for each."""
    slots = select(literal(1)).where(job_slots.c.digest == job_limits.c.digest).exists()
    tx.conn.execute(delete(job_limits).where(job_limits.c.digest.in_(_DIGESTS), ~slots), {"digests": list(digests)})


# -- places ----------------------------------------------------------------------------------------------------------------


def select_slots(tx: Tx, ids: Sequence[bytes], place: Place | None = None) -> Rows:
    """The places of these jobs, or those of them that stand there; by primary key."""
    query = select(job_slots).where(job_slots.c.job_id.in_(IDS))
    if place is not None:
        query = query.where(job_slots.c.place == int(place))
    return tx.conn.execute(query, {"ids": list(ids)}).all()


def insert_slots(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(job_slots), list(rows))


def upsert_slots(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Places of jobs that may have had another; by primary key."""
    tx.conn.execute(tx.dialect.upsert(job_slots, rows, ["digest", "place", "priority", "position"]))


def update_places(tx: Tx, ids: Sequence[bytes], place: Place) -> None:
    """By primary key."""
    change = update(job_slots).where(job_slots.c.job_id.in_(IDS)).values(place=int(place))
    tx.conn.execute(change, {"ids": list(ids)})


def delete_slots(tx: Tx, ids: Sequence[bytes]) -> None:
    tx.conn.execute(delete(job_slots).where(job_slots.c.job_id.in_(IDS)), {"ids": list(ids)})


# -- who holds, who comes next ---------------------------------------------------------------------------------------------


def select_held(tx: Tx, digests: Sequence[bytes]) -> dict[bytes, int]:
    """How many jobs hold a slot of each key: the places that say so, as far as the job's own row agrees.

    By the line's index, then by the jobs' primary key: an outer join, so that no server begins with the jobs. At most as
    many rows as the limits allow.
    """
    live = case((jobs.c.state.in_([int(State.AVAILABLE), int(State.RUNNING)]), 1), else_=0)
    query = (
        select(job_slots.c.digest, func.sum(live).label("held"))
        .select_from(job_slots)
        .outerjoin(jobs, jobs.c.id == job_slots.c.job_id)
        .where(job_slots.c.digest.in_(_DIGESTS), job_slots.c.place == int(Place.HOLDING))
        .group_by(job_slots.c.digest)
    )
    query = tx.dialect.force_index(query, job_slots, LINE_INDEX)
    return {bytes(row.digest): int(row.held) for row in tx.conn.execute(query, {"digests": list(digests)})}


@lru_cache(maxsize=128)
def _next(dialect: Dialect, count: int) -> Any:
    parts = []
    for place in range(count):
        line = (
            select(job_slots.c.digest, job_slots.c.job_id, job_slots.c.priority, job_slots.c.position)
            .where(
                job_slots.c.digest == bindparam(f"digest{place}", type_=job_slots.c.digest.type),
                job_slots.c.place == int(Place.WAITING),
            )
            .order_by(job_slots.c.priority, job_slots.c.position)
            .limit(bindparam(f"most{place}", type_=Integer))
        )
        parts.append(dialect.force_index(line, job_slots, LINE_INDEX).subquery())
    return union_all(*(select(part) for part in parts))


def select_next(tx: Tx, wanted: Mapping[bytes, int]) -> Rows:
    """The first so many that wait at each key (digest -> number), in the order of the line; by its index alone."""
    pairs = list(wanted.items())
    found: list[Row[*tuple[Any, ...]]] = []
    for start in range(0, len(pairs), MOST_PARTS):
        part = pairs[start : start + MOST_PARTS]
        filled: dict[str, Any] = {}
        for place, (digest, most) in enumerate(part):
            filled[f"digest{place}"], filled[f"most{place}"] = digest, most
        found += tx.conn.execute(_next(tx.dialect, len(part)), filled)
    return found


def select_states(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """Where these jobs are in their life, without a lock; by primary key."""
    query = select(jobs.c.id, jobs.c.flow_id, jobs.c.state, jobs.c.priority, jobs.c.available_at)
    return tx.conn.execute(query.where(jobs.c.id.in_(IDS)), {"ids": list(ids)}).all()


def update_unblocked(tx: Tx, ids: Sequence[bytes]) -> int:
    """blocked -> available; by primary key."""
    change = update(jobs).where(jobs.c.id.in_(IDS), jobs.c.state == int(State.BLOCKED))
    return tx.conn.execute(change.values(state=int(State.AVAILABLE)), {"ids": list(ids)}).rowcount


def update_blocked(tx: Tx, ids: Sequence[bytes]) -> int:
    """scheduled -> blocked, where due: they come to the line, which sees to the rest. By primary key."""
    change = update(jobs).where(jobs.c.id.in_(IDS), jobs.c.state == int(State.SCHEDULED), jobs.c.due_at <= tx.now)
    return tx.conn.execute(change.values(state=int(State.BLOCKED), due_at=None), {"ids": list(ids)}).rowcount


# -- for people ------------------------------------------------------------------------------------------------------------


def select_limits(tx: Tx, digests: Sequence[bytes]) -> Rows:
    """The rows of these keys, without a lock; by primary key."""
    query = select(job_limits).where(job_limits.c.digest.in_(_DIGESTS))
    return tx.conn.execute(query, {"digests": list(digests)}).all()


def count_ahead(tx: Tx, slot: Any, most: int) -> int:
    """How many stand in line before this place, counted up to `most`; by the line's index alone."""
    before = (job_slots.c.priority < slot.priority) | (
        (job_slots.c.priority == slot.priority) & (job_slots.c.position < slot.position)
    )
    some = select(literal(1).label("one")).where(
        job_slots.c.digest == slot.digest,
        job_slots.c.place == int(Place.WAITING),
        job_slots.c.priority <= slot.priority,
        before,
    )
    return int(tx.conn.execute(select(func.count()).select_from(some.limit(most).subquery())).scalar_one())


def select_slot_holders(tx: Tx, digest: bytes, most: int) -> Rows:
    """Some jobs that hold a slot of this key (id, flow_id, state, due_at), in the order of the line."""
    query = (
        select(jobs.c.id, jobs.c.flow_id, jobs.c.state, jobs.c.due_at)
        .join_from(job_slots, jobs, jobs.c.id == job_slots.c.job_id)
        .where(
            job_slots.c.digest == digest,
            job_slots.c.place == int(Place.HOLDING),
            jobs.c.state.in_([int(State.AVAILABLE), int(State.RUNNING)]),
        )
        .order_by(job_slots.c.priority, job_slots.c.position)
        .limit(most)
    )
    return tx.conn.execute(query).all()
