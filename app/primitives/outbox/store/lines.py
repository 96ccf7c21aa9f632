"""SQL of ordering keys: the lock on a line, the places in it, and who comes next.

Whoever lets a message into a line, or out of it, holds the line's row of `outbox_lines`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Row, bindparam, case, delete, insert, literal, select, union_all, update

from app.db.dialects.base import Dialect
from app.db.tx import Tx
from app.primitives.outbox.model.states import State
from app.primitives.outbox.store.values import IDS, Rows
from app.primitives.outbox.tables import LINE_INDEX, outbox_lines, outbox_places
from app.primitives.outbox.tables import outbox_messages as messages

MOST_PARTS = 100  # of one UNION
_DIGESTS: Any = bindparam("digests", expanding=True)


def insert_missing_lines(tx: Tx, digests: Sequence[bytes]) -> None:
    """In the order of their digests, as they are locked."""
    rows = [{"digest": digest, "last_position": 0} for digest in digests]
    tx.conn.execute(tx.dialect.insert_missing(outbox_lines, rows))


def lock_lines(tx: Tx, digests: Sequence[bytes]) -> Rows:
    """The rows of these lines, locked in the order of their digests."""
    query = select(outbox_lines).where(outbox_lines.c.digest.in_(_DIGESTS)).order_by(outbox_lines.c.digest)
    return tx.conn.execute(tx.dialect.lock(query), {"digests": list(digests)}).all()


def update_turns(tx: Tx, digests: Sequence[bytes]) -> None:
    """Write the rows of these lines, which are locked: of two nodes that do so at once, one is refused at its COMMIT."""
    change = update(outbox_lines).where(outbox_lines.c.digest.in_(_DIGESTS)).values(turn=outbox_lines.c.turn + 1)
    tx.conn.execute(change, {"digests": list(digests)})


def update_positions(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """The last position of lines that are locked; by primary key."""
    tx.conn.execute(tx.dialect.upsert(outbox_lines, rows, ["last_position"]))


def delete_empty_lines(tx: Tx, digests: Sequence[bytes]) -> None:
    """Those of these lines, which are locked, that no message has a place in; one look at the line's index for each."""
    places = select(literal(1)).where(outbox_places.c.digest == outbox_lines.c.digest).exists()
    tx.conn.execute(
        delete(outbox_lines).where(outbox_lines.c.digest.in_(_DIGESTS), ~places), {"digests": list(digests)}
    )


def insert_places(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(outbox_places), list(rows))


def select_places(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """The places of these messages; by primary key."""
    return tx.conn.execute(select(outbox_places).where(outbox_places.c.message_id.in_(IDS)), {"ids": list(ids)}).all()


def update_waits(tx: Tx, ids: Sequence[bytes], *, waits: bool) -> None:
    """By primary key."""
    change = update(outbox_places).where(outbox_places.c.message_id.in_(IDS)).values(waits=int(waits))
    tx.conn.execute(change, {"ids": list(ids)})


def delete_places(tx: Tx, ids: Sequence[bytes]) -> None:
    tx.conn.execute(delete(outbox_places).where(outbox_places.c.message_id.in_(IDS)), {"ids": list(ids)})


@lru_cache(maxsize=128)
def _firsts(dialect: Dialect, count: int) -> Any:
    parts = []
    for place in range(count):
        line = (
            select(outbox_places.c.digest, outbox_places.c.message_id)
            .where(
                outbox_places.c.digest == bindparam(f"digest{place}", type_=outbox_places.c.digest.type),
                outbox_places.c.waits == 1,
            )
            .order_by(outbox_places.c.position)
            .limit(1)
        )
        parts.append(dialect.force_index(line, outbox_places, LINE_INDEX).subquery())
    return union_all(*(select(part) for part in parts))


def select_firsts(tx: Tx, digests: Sequence[bytes]) -> Rows:
    """Who comes first of those that wait in each of these lines; by the line's index alone."""
    found: list[Row[*tuple[Any, ...]]] = []
    for start in range(0, len(digests), MOST_PARTS):
        part = digests[start : start + MOST_PARTS]
        found += tx.conn.execute(
            _firsts(tx.dialect, len(part)), {f"digest{place}": digest for place, digest in enumerate(part)}
        )
    return found


def update_unblocked(tx: Tx, ids: Sequence[bytes]) -> int:
    """blocked -> pending, or to wait for its own time first; by primary key."""
    later = messages.c.available_at > tx.now
    change = (
        update(messages)
        .where(messages.c.id.in_(IDS), messages.c.state == State.BLOCKED)
        .values(
            due_at=case((later, messages.c.available_at), else_=None),
            state=case((later, int(State.DELAYED)), else_=int(State.PENDING)),
        )
    )
    return tx.conn.execute(change, {"ids": list(ids)}).rowcount
