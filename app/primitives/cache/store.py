"""SQL of the cache. Rows are locked before they are written: a namespace's own, then those of its entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Row, and_, bindparam, case, delete, or_, select, update

from app.db.dialects.base import Dialect
from app.db.tx import Tx
from app.db.values import per_row, values_for
from app.holding import End
from app.primitives.cache.model import OnFailure
from app.primitives.cache.tables import DUE_INDEX, USED_INDEX, entries, namespaces

Rows = Sequence[Row[*tuple[Any, ...]]]
DIGESTS: BindParameter[Any] = bindparam("digests", expanding=True)
NAMES: BindParameter[Any] = bindparam("names", expanding=True)
_HOLDS = entries.c.value.is_not(None).label("holds")
_ENTRIES = select(*(column for column in entries.c if column.name != "value"), _HOLDS).where(
    entries.c.digest.in_(DIGESTS)
).order_by(entries.c.digest)  # fmt: skip
_VALUES = select(entries.c.digest, entries.c.value).where(entries.c.digest.in_(DIGESTS))
_NAMESPACES = select(namespaces).where(namespaces.c.name.in_(NAMES)).order_by(namespaces.c.name)
_READ = select(
    *(
        entries.c[name]
        for name in (
            "digest", "value", "version", "stored_at", "fresh_until", "stale_until", "used_at", "ended", "fill_until",
        )
    ),
    namespaces.c.max_entries,
    namespaces.c.max_bytes,
).select_from(
    entries.join(
        namespaces, and_(namespaces.c.name == entries.c.namespace, namespaces.c.generation == entries.c.generation)
    )
).where(entries.c.digest.in_(DIGESTS))  # fmt: skip
_VALUE = (
    "namespace", "generation", "value", "size", "version", "stored_at", "fresh_until", "stale_until", "used_at", "due_at",
)  # fmt: skip
_FILLING = (
    "namespace", "generation", "used_at", "due_at", "fill_until", "fence", "ended", "lease_micros", "grant_digest",
    "settlement_digest", "claim_digest", "sealed", "past",
)  # fmt: skip
_GONE = {"value": None, "size": 0, "version": None, "stored_at": None, "fresh_until": None, "stale_until": None}


def _in_force(dialect: Dialect, shift: int) -> ColumnElement[bool]:
    """The lease of the filler has not ended by the database's own clock at the moment of the write."""
    now = dialect.now() + shift if shift else dialect.now()
    return and_(entries.c.ended == End.HELD, entries.c.fill_until > now)


# -- reading ---------------------------------------------------------------------------------------------------------------


def select_values(tx: Tx, digests: Sequence[bytes]) -> Rows:
    """Entries of the generation that counts, each with the limits of its namespace; by primary keys, without a lock."""
    return tx.conn.execute(_READ, {"digests": list(digests)}).all()


def select_filling(tx: Tx, digests: Sequence[bytes]) -> set[bytes]:
    """Those of these entries that somebody fills at this moment; by primary keys."""
    running = and_(entries.c.ended == End.HELD, entries.c.fill_until > tx.now)
    rows = tx.conn.execute(_READ.where(running), {"digests": list(digests)})
    return {bytes(row.digest) for row in rows}


# -- rows to write to ------------------------------------------------------------------------------------------------------


def lock_namespaces(tx: Tx, names: Sequence[str]) -> dict[str, Any]:
    """Lock these namespaces in the order of their names; those that are new are made first, so that nobody waits for a row
    that is not there.
    """
    wanted = {"names": sorted(set(names))}
    there = {row.name for row in tx.conn.execute(_NAMESPACES, wanted)}
    if missing := [name for name in wanted["names"] if name not in there]:
        tx.conn.execute(tx.dialect.insert_missing(namespaces, [_fresh(name) for name in missing]))
    return {row.name: row for row in tx.conn.execute(tx.dialect.lock(_NAMESPACES), wanted)}


def _fresh(name: str) -> dict[str, Any]:
    counters = dict.fromkeys(("generation", "swept", "fence", "entries", "bytes", "stale_micros"), 0)
    return {"name": name, "on_failure": int(OnFailure.SERVE_STALE), **counters}


def lock_entries(tx: Tx, digests: Sequence[bytes]) -> dict[bytes, Any]:
    """Lock these entries, lowest digest first. Their namespaces are locked. Without their values, which may be large: `holds`
    says whether there is one.
    """
    rows = tx.conn.execute(tx.dialect.lock(_ENTRIES), {"digests": sorted(set(digests))})
    return {bytes(row.digest): row for row in rows}


def select_contents(tx: Tx, digests: Sequence[bytes]) -> dict[bytes, bytes]:
    """The values of entries that are locked and hold one."""
    return {bytes(row.digest): bytes(row.value) for row in tx.conn.execute(_VALUES, {"digests": list(digests)})}


def update_namespace(tx: Tx, name: str, changed: Mapping[str, Any]) -> None:
    """A namespace that is locked."""
    tx.conn.execute(update(namespaces).where(namespaces.c.name == name).values(**changed))


# -- filling ---------------------------------------------------------------------------------------------------------------


def upsert_fillings(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Give out the filling of these entries; what value there is stays. Rows that are there are locked."""
    tx.conn.execute(tx.dialect.upsert(entries, [{"size": 0, **row} for row in rows], _FILLING))


def update_filled(tx: Tx, grants: Sequence[bytes], said: Mapping[bytes, bytes]) -> int:
    """End these fillings (digest -> what was said), each by its newest, unexpired reservation."""
    count, filled = values_for("settlement_digest", said)
    return tx.conn.execute(
        _filling_ends(tx.dialect, tx.shift, count), filled | {"digests": list(said), "grants": list(set(grants))}
    ).rowcount


@lru_cache(maxsize=64)  # building a statement costs more than running it
def _filling_ends(dialect: Dialect, shift: int, count: int) -> Any:
    return (
        update(entries)
        .where(
            entries.c.digest.in_(DIGESTS),
            _in_force(dialect, shift),
            entries.c.grant_digest.in_(bindparam("grants", expanding=True)),
        )
        .values(
            ended=End.SETTLED,
            settlement_digest=per_row(entries.c.settlement_digest, count, by=entries.c.digest),
            fill_until=None,
        )
    )


def update_lapsed(tx: Tx, digests: Sequence[bytes]) -> int:
    """End the fillings of these entries whose leases have ended by the database's own clock."""
    change = (
        update(entries)
        .where(entries.c.digest.in_(DIGESTS), entries.c.ended == End.HELD, ~_in_force(tx.dialect, tx.shift))
        .values(ended=End.EXPIRED, fill_until=None)
    )
    return tx.conn.execute(change, {"digests": list(digests)}).rowcount


def update_cancelled(tx: Tx, digests: Sequence[bytes]) -> int:
    """End whatever filling of these entries is under way; its reservation is worth nothing any more."""
    change = (
        update(entries)
        .where(entries.c.digest.in_(DIGESTS), entries.c.ended == End.HELD, entries.c.fill_until.is_not(None))
        .values(ended=End.CANCELLED, fill_until=None)
    )
    return tx.conn.execute(change, {"digests": list(digests)}).rowcount


# -- values ----------------------------------------------------------------------------------------------------------------


def upsert_values(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put these values. Rows that are there are locked."""
    tx.conn.execute(tx.dialect.upsert(entries, rows, _VALUE))


def update_gone(tx: Tx, digests: Sequence[bytes], due_at: int) -> None:
    """Take the values of these entries away. A filling that is under way goes on, and its row stays as long."""
    until = case((entries.c.fill_until > due_at, entries.c.fill_until), else_=due_at)
    change = update(entries).where(entries.c.digest.in_(DIGESTS)).values(**_GONE, due_at=until)
    tx.conn.execute(change, {"digests": list(digests)})


def select_least_used(tx: Tx, name: str, generation: int, most: int) -> Rows:
    """Entries of a namespace that is locked, the least recently used first; by the index on use."""
    query = (
        select(entries.c.digest, entries.c.size, entries.c.fill_until, entries.c.ended)
        .where(entries.c.namespace == name, entries.c.generation == generation, entries.c.value.is_not(None))
        .order_by(entries.c.used_at, entries.c.digest)
        .limit(most)
    )
    return tx.conn.execute(tx.dialect.force_index(query, entries, USED_INDEX)).all()


# -- sweeps ----------------------------------------------------------------------------------------------------------------


def update_used(tx: Tx, digests: Sequence[bytes]) -> int:
    """Note that these were used now; those that somebody has locked are left out."""
    query = select(entries.c.digest).where(entries.c.digest.in_(DIGESTS)).order_by(entries.c.digest)
    free = [bytes(row.digest) for row in tx.conn.execute(tx.dialect.lock_free(query), {"digests": list(digests)})]
    if not free:
        return 0
    change = update(entries).where(entries.c.digest.in_(DIGESTS)).values(used_at=tx.now)
    return tx.conn.execute(change, {"digests": free}).rowcount


def select_due(tx: Tx, most: int) -> list[tuple[str, bytes]]:
    """(namespace, digest) of entries of which nothing counts any more, the longest due first; by the due index."""
    query = (
        select(entries.c.namespace, entries.c.digest)
        .where(entries.c.due_at <= tx.now)
        .order_by(entries.c.due_at, entries.c.digest)
        .limit(most)
    )
    rows = tx.conn.execute(tx.dialect.force_index(query, entries, DUE_INDEX))
    return [(row.namespace, bytes(row.digest)) for row in rows]


def select_unswept(tx: Tx) -> Rows:
    """Namespaces that were cleared and may still have rows from before."""
    query = select(namespaces.c.name, namespaces.c.generation).where(namespaces.c.swept < namespaces.c.generation)
    return tx.conn.execute(query.order_by(namespaces.c.name)).all()


def select_too_full(tx: Tx, most: int) -> list[str]:
    """Namespaces that hold more than they may."""
    over = or_(namespaces.c.entries > namespaces.c.max_entries, namespaces.c.bytes > namespaces.c.max_bytes)
    return [row.name for row in tx.conn.execute(select(namespaces.c.name).where(over).limit(most))]


def select_hidden(tx: Tx, name: str, generation: int, most: int) -> list[bytes]:
    """Entries of generations before this one of a namespace that is locked; by the index on use."""
    query = (
        select(entries.c.digest)
        .where(entries.c.namespace == name, entries.c.generation < generation)
        .order_by(entries.c.generation, entries.c.used_at, entries.c.digest)
        .limit(most)
    )
    rows = tx.conn.execute(tx.dialect.force_index(query, entries, USED_INDEX))
    return [bytes(row.digest) for row in rows]


def delete_entries(tx: Tx, digests: Sequence[bytes]) -> int:
    return tx.conn.execute(delete(entries).where(entries.c.digest.in_(DIGESTS)), {"digests": list(digests)}).rowcount


# -- namespaces for people -------------------------------------------------------------------------------------------------


def select_namespaces(tx: Tx, after: str | None, most: int) -> Rows:
    """By name, ascending."""
    query = select(namespaces).order_by(namespaces.c.name).limit(most)
    return tx.conn.execute(query if after is None else query.where(namespaces.c.name > after)).all()


def select_namespace(tx: Tx, name: str) -> Any | None:
    return tx.conn.execute(select(namespaces).where(namespaces.c.name == name)).one_or_none()
