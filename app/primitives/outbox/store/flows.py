"""SQL of flows and destinations; small tables, by primary key or whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, bindparam, delete, exists, literal, select, update

from app.db.tx import Tx
from app.primitives.outbox.model.states import State
from app.primitives.outbox.store.values import Rows
from app.primitives.outbox.tables import outbox_destinations as destinations
from app.primitives.outbox.tables import outbox_flows as flows
from app.primitives.outbox.tables import outbox_messages as messages

_NAMES: Any = bindparam("names", expanding=True)


def select_flows(tx: Tx) -> Rows:
    """All flows; a small table."""
    return tx.conn.execute(select(flows)).all()


def select_flows_of(tx: Tx, names: Sequence[str]) -> Rows:
    """The flows of these destinations; by the unique index."""
    return tx.conn.execute(select(flows).where(flows.c.destination.in_(_NAMES)), {"names": list(names)}).all()


def insert_missing_flows(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(tx.dialect.insert_missing(flows, rows))


def select_busy_flows(tx: Tx, names: Sequence[str]) -> Rows:
    """The flows of these destinations that have pending messages; one look at the claim index for each."""
    work = exists(select(literal(1)).where(messages.c.flow_id == flows.c.id, messages.c.state == State.PENDING))
    query = select(flows.c.destination, flows.c.type).where(flows.c.destination.in_(_NAMES), work)
    return tx.conn.execute(query, {"names": list(names)}).all()


# -- destinations ----------------------------------------------------------------------------------------------------------


def select_destinations(tx: Tx, names: Sequence[str]) -> Rows:
    """By primary key, without a lock."""
    query = select(destinations).where(destinations.c.name.in_(_NAMES))
    return tx.conn.execute(query, {"names": list(names)}).all()


def select_page(tx: Tx, after: str | None, most: int | None) -> Rows:
    """By name, from the one after `after` on."""
    query = select(destinations).order_by(destinations.c.name)
    if after is not None:
        query = query.where(destinations.c.name > after)
    return tx.conn.execute(query if most is None else query.limit(most)).all()


def insert_missing_destination(tx: Tx, row: Mapping[str, Any]) -> None:
    tx.conn.execute(tx.dialect.insert_missing(destinations, [row]))


def lock_destination(tx: Tx, name: str) -> Row[Any]:
    """Lock one destination, which must be there."""
    query = select(destinations).where(destinations.c.name == name)
    return tx.conn.execute(tx.dialect.lock(query)).one()


def update_destination(tx: Tx, name: str, values: Mapping[str, Any]) -> None:
    """Write over a destination that is locked."""
    tx.conn.execute(update(destinations).where(destinations.c.name == name).values(**values))


def delete_destination(tx: Tx, name: str) -> None:
    tx.conn.execute(delete(destinations).where(destinations.c.name == name))
