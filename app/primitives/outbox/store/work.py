"""SQL of recording and claiming. Every UPDATE repeats its condition and gives the number of rows that it matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Integer, Row, Select, bindparam, delete, insert, select, union_all, update

from app.db.dialects.base import Dialect
from app.db.tx import Tx
from app.db.values import alike, values_for
from app.primitives.outbox.model.states import State
from app.primitives.outbox.store.values import HOT, IDS, Rows, by_id, per_row
from app.primitives.outbox.tables import (
    CLAIM_INDEX,
    outbox_claims,
    outbox_contents,
    outbox_keys,
)
from app.primitives.outbox.tables import outbox_messages as messages

MOST_PARTS = 100  # of one UNION; SQLite takes 500
_WHOLE = by_id(select(*HOT))
_DIGESTS: Any = bindparam("digests", expanding=True)

# -- record ----------------------------------------------------------------------------------------------------------------


def select_keys(tx: Tx, digests: Sequence[bytes]) -> Rows:
    """What these message keys were used for; by primary key."""
    return tx.conn.execute(
        select(outbox_keys).where(outbox_keys.c.digest.in_(_DIGESTS)), {"digests": list(digests)}
    ).all()


def insert_keys(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """The primary key decides between two recordings with one key: the later one fails as a duplicate."""
    tx.conn.execute(insert(outbox_keys), list(rows))


def insert_messages(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """The counters begin at 0 by the columns' defaults."""
    tx.conn.execute(insert(messages), list(rows))


def insert_contents(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(outbox_contents), list(rows))


def select_messages(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """Without a lock, by id ascending."""
    return tx.conn.execute(_WHOLE, {"ids": list(ids)}).all()


def select_contents(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """By primary key."""
    query = select(outbox_contents).where(outbox_contents.c.message_id.in_(IDS))
    return tx.conn.execute(query, {"ids": list(ids)}).all()


# -- claim -----------------------------------------------------------------------------------------------------------------


def _head(dialect: Dialect, place: str) -> Select[Any]:
    """Pending messages of one flow in order. `place` names the parameters."""
    query = (
        select(messages.c.flow_id, messages.c.available_at, messages.c.id)
        .where(messages.c.flow_id == bindparam(f"flow{place}", type_=Integer), messages.c.state == State.PENDING)
        .order_by(messages.c.available_at, messages.c.id)
        .limit(bindparam(f"most{place}", type_=Integer))
    )
    return dialect.force_index(query, messages, CLAIM_INDEX)


@lru_cache(maxsize=256)  # building a statement costs more than running it, here and below
def _heads(dialect: Dialect, count: int) -> Any:
    parts = [_head(dialect, str(place)).subquery() for place in range(count)]
    return union_all(*(select(part) for part in parts))


def select_heads(tx: Tx, wanted: Mapping[int, int]) -> Rows:
    """The first so many pending messages of each flow (flow id -> number), without a lock, by the claim index alone."""
    pairs = list(wanted.items())
    found: list[Row[*tuple[Any, ...]]] = []
    for start in range(0, len(pairs), MOST_PARTS):
        part = pairs[start : start + MOST_PARTS]
        filled: dict[str, int] = {}
        for place, (flow_id, most) in enumerate(part):
            filled[f"flow{place}"], filled[f"most{place}"] = flow_id, most
        found += tx.conn.execute(_heads(tx.dialect, len(part)), filled)
    return found


def lock_pending(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """Lock those of these messages that are pending and that nobody else holds; by primary key, ascending."""
    query = tx.dialect.lock_free(_WHOLE.where(messages.c.state == State.PENDING))
    return tx.conn.execute(query, {"ids": list(ids)}).all()


def update_claimed(tx: Tx, grant: bytes, workers: Mapping[bytes, str], leases: Mapping[bytes, int]) -> int:
    """pending -> sending. Keys of the mappings: message ids."""
    written = 0
    for group in alike(workers, leases):
        own_worker, worker = values_for("worker", {one: workers[one] for one in group})
        own_lease, lease = values_for("lease_micros", {one: leases[one] for one in group})
        filled = {"ids": group, "now": tx.now, "grant": grant, **worker, **lease}
        written += tx.conn.execute(_claiming(own_worker, own_lease), filled).rowcount
    return written


@lru_cache(maxsize=256)
def _claiming(own_worker: int, own_lease: int) -> Any:
    lease, now = per_row(messages.c.lease_micros, own_lease), bindparam("now", type_=messages.c.due_at.type)
    return (
        update(messages)
        .where(messages.c.id.in_(IDS), messages.c.state == State.PENDING)
        .values(
            state=State.SENDING,
            fence=messages.c.fence + 1,
            attempt=messages.c.attempt + 1,
            claimed_at=now,
            grant_digest=bindparam("grant", type_=messages.c.grant_digest.type),
            settlement_digest=None,
            worker=per_row(messages.c.worker, own_worker),
            lease_micros=lease,
            due_at=now + lease,
        )
    )


def select_granted(tx: Tx, grant: bytes, ids: Sequence[bytes]) -> Rows:
    """Those of these messages that are held under this grant."""
    query = _WHOLE.where(messages.c.grant_digest == grant, messages.c.state == State.SENDING)
    return tx.conn.execute(query, {"ids": list(ids)}).all()


def lock_claims(tx: Tx, digests: Sequence[bytes]) -> Rows:
    """The grants of earlier claims with these ids."""
    query = select(outbox_claims).where(outbox_claims.c.digest.in_(_DIGESTS)).order_by(outbox_claims.c.digest)
    return tx.conn.execute(tx.dialect.lock(query), {"digests": list(digests)}).all()


def insert_claims(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Fails as a duplicate when another replica granted to the same claim id a moment ago."""
    tx.conn.execute(insert(outbox_claims), list(rows))


def delete_claims(tx: Tx, digests: Sequence[bytes]) -> None:
    tx.conn.execute(delete(outbox_claims).where(outbox_claims.c.digest.in_(_DIGESTS)), {"digests": list(digests)})
