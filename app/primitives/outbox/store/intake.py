"""SQL of the table that producers write to themselves."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import case, delete, func, literal, select, update

from app.db.tx import Tx
from app.primitives.outbox.store.values import Rows
from app.primitives.outbox.tables import INTAKE_INDEX, outbox

PENDING, SET_ASIDE = "pending", "set_aside"


def select_waiting(tx: Tx, most: int) -> list[int]:
    """The ids of committed rows that nobody has looked at, the oldest first. No lock: a row that its producer has not
    committed yet must not be waited for.
    """
    query = select(outbox.c.id).where(outbox.c.state == PENDING).order_by(outbox.c.id).limit(most)
    return list(tx.conn.execute(tx.dialect.force_index(query, outbox, INTAKE_INDEX)).scalars())


def lock_waiting(tx: Tx, ids: Sequence[int], most_characters: int) -> Rows:
    """Lock those of these rows that still wait and that nobody else holds; by primary key. A payload that is longer is not
    read: it may be of any size.
    """
    short = case((func.length(outbox.c.payload) <= most_characters, outbox.c.payload))
    columns = [column for column in outbox.c if column is not outbox.c.payload]
    query = (
        select(*columns, short.label("payload"))
        .where(outbox.c.id.in_(list(ids)), outbox.c.state == PENDING)
        .order_by(outbox.c.id)
    )
    return tx.conn.execute(tx.dialect.lock_free(query)).all()


def delete_adopted(tx: Tx, ids: Sequence[int]) -> int:
    return tx.conn.execute(delete(outbox).where(outbox.c.id.in_(list(ids)), outbox.c.state == PENDING)).rowcount


def update_set_aside(tx: Tx, row_id: int, reason: str) -> None:
    """pending -> set_aside: it is kept as it was written, and looked at no more."""
    change = update(outbox).where(outbox.c.id == row_id, outbox.c.state == PENDING)
    tx.conn.execute(change.values(state=SET_ASIDE, reason=reason))


def any_waiting(tx: Tx) -> bool:
    """Whether a producer has written anything that is not adopted yet; one look at the index."""
    return tx.conn.execute(select(literal(1)).where(outbox.c.state == PENDING).limit(1)).first() is not None
