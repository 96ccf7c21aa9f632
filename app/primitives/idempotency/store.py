"""SQL of idempotency. Every UPDATE repeats its condition and gives the number of rows that it matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Row,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from app.db import values
from app.db.dialects.base import Dialect
from app.db.tx import Tx
from app.db.values import alike, assigned, values_for
from app.holding import End
from app.primitives.idempotency.model import State
from app.primitives.idempotency.tables import DUE_INDEX, keys, results

Rows = Sequence[Row[*tuple[Any, ...]]]
DIGESTS: BindParameter[Any] = bindparam("digests", expanding=True)
per_row = partial(values.per_row, by=keys.c.digest)
_WHOLE = select(keys).where(keys.c.digest.in_(DIGESTS)).order_by(keys.c.digest)
_RESULTS = select(results).where(results.c.digest.in_(DIGESTS))
_TAKEN = (
    "fence", "attempt", "fingerprint", "on_owner_lost", "retention_micros", "created_at", "lease_micros", "claim_digest",
    "sealed", "past",
)  # fmt: skip
_SAID = ("state", "due_at", "settlement_digest", "category")


def _live(dialect: Dialect, shift: int) -> ColumnElement[bool]:
    """The lease has not ended by the database's own clock at the moment of the write."""
    return keys.c.due_at > dialect.now() + shift if shift else keys.c.due_at > dialect.now()


def _running(dialect: Dialect, shift: int) -> ColumnElement[bool]:
    return and_(keys.c.state == State.RUNNING, _live(dialect, shift))


# -- check -----------------------------------------------------------------------------------------------------------------


def select_keys(tx: Tx, digests: Sequence[bytes]) -> Rows:
    """Without a lock, by primary key."""
    return tx.conn.execute(_WHOLE, {"digests": list(digests)}).all()


def lock_keys(tx: Tx, digests: Sequence[bytes]) -> Rows:
    """Lock these rows by primary key, ascending, waiting for whoever holds them."""
    return tx.conn.execute(tx.dialect.lock(_WHOLE), {"digests": list(digests)}).all()


def insert_keys(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """The primary key decides between two first checks: the later one fails as a duplicate, and its unit runs again."""
    tx.conn.execute(insert(keys), list(rows))


def update_taken(tx: Tx, grant: bytes, rows: Mapping[bytes, Mapping[str, Any]]) -> int:
    """Anything but running -> running, under this grant. Keys: digests; values: the columns of `_TAKEN`. The rows are locked."""
    written = 0
    by_name = {name: {digest: row[name] for digest, row in rows.items()} for name in _TAKEN}
    for group in alike(*by_name.values()):
        own: list[int] = []
        filled: dict[str, Any] = {"digests": group, "now": tx.now, "grant": grant}
        for name in _TAKEN:
            count, parameters = values_for(name, {digest: by_name[name][digest] for digest in group})
            own.append(count)
            filled |= parameters
        written += tx.conn.execute(_taking(tx.dialect, tx.shift, tuple(own)), filled).rowcount
    return written


@lru_cache(maxsize=256)  # building a statement costs more than running it, here and below
def _taking(dialect: Dialect, shift: int, own: tuple[int, ...]) -> Any:
    changed = {name: per_row(keys.c[name], count) for name, count in zip(_TAKEN, own, strict=True)}
    now = bindparam("now", type_=keys.c.due_at.type)
    return (
        update(keys)
        .where(keys.c.digest.in_(DIGESTS), ~_running(dialect, shift), keys.c.fence < changed["fence"])
        .values(
            **changed,
            state=State.RUNNING,
            ended=End.HELD,
            grant_digest=bindparam("grant", type_=keys.c.grant_digest.type),
            settlement_digest=None,
            verdict_digest=None,
            ended_at=None,
            category=None,
            due_at=now + changed["lease_micros"],
        )
    )


def select_results(tx: Tx, digests: Sequence[bytes]) -> dict[bytes, Any]:
    """By primary key."""
    return {bytes(row.digest): row for row in tx.conn.execute(_RESULTS, {"digests": list(digests)})}


def select_done(tx: Tx, digests: Sequence[bytes]) -> list[bytes]:
    """Those of these keys that nobody is at work on; by primary key. One that has no row is one of them."""
    query = select(keys.c.digest).where(
        keys.c.digest.in_(DIGESTS), keys.c.state == State.RUNNING, keys.c.due_at > tx.now
    )
    running = {bytes(row.digest) for row in tx.conn.execute(query, {"digests": list(digests)})}
    return [digest for digest in digests if digest not in running]


# -- settle and renew ------------------------------------------------------------------------------------------------------


def update_settled(tx: Tx, grants: Sequence[bytes], rows: Mapping[bytes, Mapping[str, Any]]) -> int:
    """running -> what its owner said, for the newest unexpired reservation only. Values: the columns of `_SAID`."""
    written = 0
    by_name = {name: {digest: row[name] for digest, row in rows.items()} for name in _SAID}
    for group in alike(*by_name.values()):
        own: list[int] = []
        filled: dict[str, Any] = {"digests": group, "now": tx.now, "grants": list(set(grants))}
        for name in _SAID:
            count, parameters = values_for(name, {digest: by_name[name][digest] for digest in group})
            own.append(count)
            filled |= parameters
        written += tx.conn.execute(_settling(tx.dialect, tx.shift, tuple(own)), filled).rowcount
    return written


@lru_cache(maxsize=256)
def _settling(dialect: Dialect, shift: int, own: tuple[int, ...]) -> Any:
    return (
        update(keys)
        .where(
            keys.c.digest.in_(DIGESTS),
            _running(dialect, shift),
            keys.c.grant_digest.in_(bindparam("grants", expanding=True)),
        )
        .values(
            **{name: per_row(keys.c[name], count) for name, count in zip(_SAID, own, strict=True)},
            ended=End.SETTLED,
            ended_at=bindparam("now", type_=keys.c.ended_at.type),
        )
    )


def insert_results(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(results), list(rows))


def delete_results(tx: Tx, digests: Sequence[bytes]) -> None:
    tx.conn.execute(delete(results).where(results.c.digest.in_(DIGESTS)), {"digests": list(digests)})


def update_renewed(tx: Tx, fences: Mapping[bytes, int], grants: Sequence[bytes], ends: Mapping[bytes, int]) -> int:
    """Extend these reservations (digest -> fence) to their ends, and never back."""
    until = assigned(ends, keys.c.due_at, by=keys.c.digest)
    change = (
        update(keys)
        .where(
            keys.c.digest.in_(DIGESTS),
            _running(tx.dialect, tx.shift),
            keys.c.fence == assigned(fences, keys.c.fence, by=keys.c.digest),
            keys.c.grant_digest.in_(bindparam("grants", expanding=True)),
        )
        .values(due_at=case((until > keys.c.due_at, until), else_=keys.c.due_at))
    )
    return tx.conn.execute(change, {"digests": list(fences), "grants": list(set(grants))}).rowcount


def update_given_back(tx: Tx, digests: Sequence[bytes], grants: Sequence[bytes], due_at: int) -> int:
    """running -> open for grants that reached nobody; the attempt was none."""
    change = (
        update(keys)
        .where(
            keys.c.digest.in_(DIGESTS),
            _running(tx.dialect, tx.shift),
            keys.c.grant_digest.in_(bindparam("grants", expanding=True)),
        )
        .values(state=State.OPEN, ended=End.CANCELLED, attempt=keys.c.attempt - 1, due_at=due_at)
    )
    return tx.conn.execute(change, {"digests": list(digests), "grants": list(set(grants))}).rowcount


def update_decided(tx: Tx, digest: bytes, changed: Mapping[str, Any]) -> int:
    """unknown -> what the verdict says."""
    change = update(keys).where(keys.c.digest == digest, keys.c.state == State.UNKNOWN).values(**changed)
    return tx.conn.execute(change).rowcount


# -- sweeps ----------------------------------------------------------------------------------------------------------------


def lock_due(tx: Tx, state: State, before: int, most: int) -> Rows:
    """Keys in `state` that were due before, the longest due first, that nobody else has locked; by the due index."""
    query = (
        select(keys)
        .where(keys.c.state == int(state), keys.c.due_at <= before)
        .order_by(keys.c.due_at, keys.c.digest)
        .limit(most)
    )
    return tx.conn.execute(tx.dialect.lock_free(tx.dialect.force_index(query, keys, DUE_INDEX))).all()


def update_lapsed(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> int:
    """running -> what its owner chose (`b_digest`, `b_state`, `b_due_at`, `b_category`, `b_ended_at`), for a lease that has
    ended by the database's own clock.
    """
    change = (
        update(keys)
        .where(
            keys.c.digest == bindparam("b_digest"),
            keys.c.state == State.RUNNING,
            ~_live(tx.dialect, tx.shift),
        )
        .values(
            ended=End.EXPIRED,
            **{
                name: bindparam(f"b_{name}", type_=keys.c[name].type)
                for name in ("state", "due_at", "category", "ended_at")
            },
        )
    )
    return tx.conn.execute(change, list(rows)).rowcount


def delete_keys(tx: Tx, digests: Sequence[bytes]) -> None:
    """Rows that are locked, and their results. Call `raise_floor` before."""
    delete_results(tx, digests)
    tx.conn.execute(delete(keys).where(keys.c.digest.in_(DIGESTS)), {"digests": list(digests)})


# -- reading ---------------------------------------------------------------------------------------------------------------


def select_page(tx: Tx, state: State, scope: bytes | None, after: tuple[int, bytes] | None, most: int) -> Rows:
    """Keys in `state`, by the due index from its end. `after`: (due_at, digest) of the row before. Unknown keys have no
    due_at, and come by digest.
    """
    query = select(keys).where(keys.c.state == int(state))
    if scope is not None:
        query = query.where(keys.c.scope == scope)
    if after is not None:
        due_at, digest = after
        same = keys.c.due_at.is_(None) if state is State.UNKNOWN else keys.c.due_at == due_at
        below = and_(same, keys.c.digest < digest)
        query = query.where(below if state is State.UNKNOWN else or_(keys.c.due_at < due_at, below))
    query = query.order_by(keys.c.due_at.desc(), keys.c.digest.desc()).limit(most)
    return tx.conn.execute(tx.dialect.force_index(query, keys, DUE_INDEX)).all()


def count_states(tx: Tx) -> dict[State, int]:
    """How many keys are in each state; by the due index alone."""
    query = select(keys.c.state, func.count().label("amount")).group_by(keys.c.state)
    rows = tx.conn.execute(tx.dialect.force_index(query, keys, DUE_INDEX))
    return {State(row.state): row.amount for row in rows}
