"""SQL of the locks. Every UPDATE repeats its condition and gives the number of rows that it matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    LargeBinary,
    Row,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
    union_all,
    update,
)

from app.db import values
from app.db.dialects.base import Dialect
from app.db.tx import Tx
from app.db.values import alike, assigned, values_for
from app.holding import End
from app.primitives.locks.model import State
from app.primitives.locks.tables import DUE_INDEX, LINE_INDEX, WAITERS_DUE_INDEX, lock_processes, lock_waiters, locks

Rows = Sequence[Row[*tuple[Any, ...]]]
DIGESTS: BindParameter[Any] = bindparam("digests", expanding=True)
MOST_PARTS = 100  # of one UNION; SQLite takes 500
per_row = partial(values.per_row, by=locks.c.digest)
_WHOLE = select(locks).where(locks.c.digest.in_(DIGESTS)).order_by(locks.c.digest)


def _live(dialect: Dialect, shift: int) -> ColumnElement[bool]:
    """The lease has not ended by the database's own clock at the moment of the write."""
    return locks.c.due_at > dialect.now() + shift if shift else locks.c.due_at > dialect.now()


# -- locks -----------------------------------------------------------------------------------------------------------------


def insert_locks(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Make the rows that are not there; those of others are left alone, and waited for."""
    tx.conn.execute(tx.dialect.insert_missing(locks, rows))


def lock_locks(tx: Tx, digests: Sequence[bytes]) -> Rows:
    """Lock these rows by primary key, ascending, waiting for whoever holds them."""
    return tx.conn.execute(tx.dialect.lock(_WHOLE), {"digests": list(digests)}).all()


def select_locks(tx: Tx, digests: Sequence[bytes]) -> Rows:
    """Without a lock, by primary key."""
    return tx.conn.execute(_WHOLE, {"digests": list(digests)}).all()


def update_acquired(tx: Tx, grant: bytes, rows: Mapping[bytes, Mapping[str, Any]]) -> int:
    """free, or held past its lease -> held under this grant. Keys: digests; values: the columns that differ from row to row
    (`fence` is the new one). The rows are locked.
    """
    names = ("fence", "owner", "lease_micros", "claim_digest", "sealed", "past")
    written = 0
    by_name = {name: {digest: row[name] for digest, row in rows.items()} for name in names}
    for group in alike(*by_name.values()):
        own: list[int] = []
        filled: dict[str, Any] = {"digests": group, "now": tx.now, "grant": grant}
        for name in names:
            count, parameters = values_for(name, {digest: by_name[name][digest] for digest in group})
            own.append(count)
            filled |= parameters
        written += tx.conn.execute(_acquiring(tx.dialect, tx.shift, names, tuple(own)), filled).rowcount
    return written


@lru_cache(maxsize=256)  # building a statement costs more than running it, here and below
def _acquiring(dialect: Dialect, shift: int, names: tuple[str, ...], own: tuple[int, ...]) -> Any:
    now = bindparam("now", type_=locks.c.due_at.type)
    changed = {name: per_row(locks.c[name], count) for name, count in zip(names, own, strict=True)}
    return (
        update(locks)
        .where(
            locks.c.digest.in_(DIGESTS),
            or_(locks.c.state == State.FREE, ~_live(dialect, shift)),
            locks.c.fence < changed["fence"],
        )
        .values(
            **changed,
            state=State.HELD,
            ended=End.HELD,
            grant_digest=bindparam("grant", type_=locks.c.grant_digest.type),
            settlement_digest=None,
            acquired_at=now,
            due_at=now + changed["lease_micros"],
        )
    )


def update_awaited(tx: Tx, untils: Mapping[bytes, int]) -> None:
    """Somebody waits for these locks until then; never less than before."""
    until = assigned(untils, locks.c.awaited_until, by=locks.c.digest)
    later = case((until > locks.c.awaited_until, until), else_=locks.c.awaited_until)
    change = update(locks).where(locks.c.digest.in_(DIGESTS)).values(awaited_until=later)
    tx.conn.execute(change, {"digests": list(untils)})


def update_renewed(tx: Tx, fences: Mapping[bytes, int], grants: Sequence[bytes], ends: Mapping[bytes, int]) -> int:
    """Extend these reservations (digest -> fence) to their ends, and never back."""
    until = assigned(ends, locks.c.due_at, by=locks.c.digest)
    change = (
        update(locks)
        .where(*_held(tx, fences))
        .values(due_at=case((until > locks.c.due_at, until), else_=locks.c.due_at))
    )
    return tx.conn.execute(change, {"digests": list(fences), "grants": list(set(grants))}).rowcount


def update_released(tx: Tx, grants: Sequence[bytes], digests: Sequence[bytes], settlement: bytes, purge_at: int) -> int:
    """held -> free, for the newest unexpired reservation only."""
    filled = {
        "digests": list(digests),
        "grants": list(set(grants)),
        "settlement": settlement,
        "purge_at": purge_at,
    }
    return tx.conn.execute(_releasing(tx.dialect, tx.shift), filled).rowcount


@lru_cache(maxsize=16)
def _releasing(dialect: Dialect, shift: int) -> Any:
    return (
        update(locks)
        .where(
            locks.c.digest.in_(DIGESTS),
            locks.c.state == State.HELD,
            locks.c.grant_digest.in_(bindparam("grants", expanding=True)),
            _live(dialect, shift),
        )
        .values(
            state=State.FREE,
            ended=End.SETTLED,
            settlement_digest=bindparam("settlement", type_=locks.c.settlement_digest.type),
            due_at=bindparam("purge_at", type_=locks.c.due_at.type),
        )
    )


def _held(tx: Tx, fences: Mapping[bytes, int]) -> list[ColumnElement[bool]]:
    return [
        locks.c.digest.in_(DIGESTS),
        locks.c.state == State.HELD,
        locks.c.fence == assigned(fences, locks.c.fence, by=locks.c.digest),
        locks.c.grant_digest.in_(bindparam("grants", expanding=True)),
        _live(tx.dialect, tx.shift),
    ]


def update_broken(tx: Tx, digest: bytes, fence: int, purge_at: int) -> int:
    """held -> free, whoever holds it, if the fence is still this one."""
    change = (
        update(locks)
        .where(locks.c.digest == digest, locks.c.state == State.HELD, locks.c.fence == fence)
        .values(state=State.FREE, ended=End.CANCELLED, due_at=purge_at)
    )
    return tx.conn.execute(change).rowcount


# -- the line --------------------------------------------------------------------------------------------------------------


def insert_waiters(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Stand in line, behind those who are there. A place that is there already keeps its position."""
    tx.conn.execute(tx.dialect.upsert(lock_waiters, rows, ["until", "process"]))


def delete_waiters(tx: Tx, places: Sequence[bytes]) -> int:
    gone = delete(lock_waiters).where(lock_waiters.c.id.in_(bindparam("places", expanding=True)))
    return tx.conn.execute(gone, {"places": sorted(places)}).rowcount


def _first(dialect: Dialect, place: int) -> Select[Any]:
    """The first of one line whose process is heard of."""
    query = (
        select(lock_waiters.c.digest, lock_waiters.c.id)
        .join_from(lock_waiters, lock_processes, lock_processes.c.id == lock_waiters.c.process)
        .where(
            lock_waiters.c.digest == bindparam(f"digest{place}", type_=LargeBinary()),
            lock_waiters.c.until > bindparam("now", type_=lock_waiters.c.until.type),
            lock_processes.c.alive_until > bindparam("now", type_=lock_waiters.c.until.type),
        )
        .order_by(lock_waiters.c.position, lock_waiters.c.number, lock_waiters.c.id)
        .limit(1)
    )
    return dialect.force_index(query, lock_waiters, LINE_INDEX)


@lru_cache(maxsize=256)
def _firsts(dialect: Dialect, count: int) -> Any:
    return union_all(*(select(_first(dialect, place).subquery()) for place in range(count)))


def select_firsts(tx: Tx, digests: Sequence[bytes]) -> dict[bytes, bytes]:
    """Whose turn it is, by lock; by the lines' index."""
    found: dict[bytes, bytes] = {}
    for start in range(0, len(digests), MOST_PARTS):
        part = digests[start : start + MOST_PARTS]
        filled = {"now": tx.now} | {f"digest{place}": digest for place, digest in enumerate(part)}
        rows = tx.conn.execute(_firsts(tx.dialect, len(part)), filled)
        found |= {bytes(row.digest): bytes(row.id) for row in rows}
    return found


def upsert_process(tx: Tx, process: bytes, alive_until: int) -> None:
    """Callers of this process wait, and it lives; by primary key."""
    row = {"id": process, "alive_until": alive_until}
    tx.conn.execute(tx.dialect.upsert(lock_processes, [row], ["alive_until"]))


def select_open(tx: Tx, digests: Sequence[bytes]) -> list[bytes]:
    """Those of these locks that nobody holds; by primary key. One that has no row is one of them."""
    query = select(locks.c.digest).where(
        locks.c.digest.in_(DIGESTS), locks.c.state == State.HELD, locks.c.due_at > tx.now
    )
    held = {bytes(row.digest) for row in tx.conn.execute(query, {"digests": list(digests)})}
    return [digest for digest in digests if digest not in held]


# -- sweeps ----------------------------------------------------------------------------------------------------------------


def lock_due(tx: Tx, state: State, before: int, most: int) -> Rows:
    """Locks in `state` that were due before, the longest due first, that nobody else has locked; by the due index."""
    query = (
        select(locks)
        .where(locks.c.state == int(state), locks.c.due_at <= before)
        .order_by(locks.c.due_at, locks.c.digest)
        .limit(most)
    )
    return tx.conn.execute(tx.dialect.lock_free(tx.dialect.force_index(query, locks, DUE_INDEX))).all()


def update_expired(tx: Tx, digests: Sequence[bytes], purge_at: int) -> int:
    """held -> free, for leases that have ended by the database's own clock."""
    change = (
        update(locks)
        .where(locks.c.digest.in_(DIGESTS), locks.c.state == State.HELD, ~_live(tx.dialect, tx.shift))
        .values(state=State.FREE, ended=End.EXPIRED, due_at=purge_at)
    )
    return tx.conn.execute(change, {"digests": list(digests)}).rowcount


def delete_locks(tx: Tx, digests: Sequence[bytes]) -> None:
    """Rows that are locked. Call `raise_floor` before."""
    tx.conn.execute(delete(locks).where(locks.c.digest.in_(DIGESTS)), {"digests": list(digests)})


def delete_old_waiters(tx: Tx, most: int) -> int:
    """Places whose time is over."""
    old = (
        select(lock_waiters.c.id)
        .where(lock_waiters.c.until <= tx.now)
        .order_by(lock_waiters.c.until, lock_waiters.c.id)
        .limit(most)
    )
    old = tx.dialect.force_index(old, lock_waiters, WAITERS_DUE_INDEX)
    places = [bytes(row.id) for row in tx.conn.execute(tx.dialect.lock_free(old))]
    return delete_waiters(tx, places) if places else 0


def delete_old_processes(tx: Tx, before: int) -> None:
    """A handful of rows."""
    tx.conn.execute(delete(lock_processes).where(lock_processes.c.alive_until < before))


# -- reading ---------------------------------------------------------------------------------------------------------------


def select_page(tx: Tx, state: State, after: tuple[int, bytes] | None, most: int) -> Rows:
    """Locks in `state`, those that end last first; by the due index. `after`: (due_at, digest) of the row before."""
    query = select(locks).where(locks.c.state == int(state))
    if state is State.HELD:
        query = query.where(locks.c.due_at > tx.now)
    if after is not None:
        due_at, digest = after
        query = query.where(or_(locks.c.due_at < due_at, and_(locks.c.due_at == due_at, locks.c.digest < digest)))
    query = query.order_by(locks.c.due_at.desc(), locks.c.digest.desc()).limit(most)
    return tx.conn.execute(tx.dialect.force_index(query, locks, DUE_INDEX)).all()


def count_waiters(tx: Tx, digests: Sequence[bytes]) -> dict[bytes, int]:
    """How many wait for each of these locks; by the lines' index."""
    query = (
        select(lock_waiters.c.digest, func.count().label("amount"))
        .where(lock_waiters.c.digest.in_(DIGESTS), lock_waiters.c.until > tx.now)
        .group_by(lock_waiters.c.digest)
    )
    return {bytes(row.digest): row.amount for row in tx.conn.execute(query, {"digests": list(digests)})}


def count_held(tx: Tx) -> int:
    """How many locks are held; by the due index alone."""
    query = select(func.count()).where(locks.c.state == State.HELD, locks.c.due_at > tx.now)
    return int(tx.conn.execute(query).scalar_one())
