"""SQL of reconciliations: what is unknown, and who is finding out.

A row is there exactly while its message is `unknown`. Who takes an open one locks its row; who ends or puts one off holds the
message's row first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, literal, select, update

from app.db.tx import Tx
from app.primitives.outbox.model.states import Doubt
from app.primitives.outbox.store.values import IDS, Rows
from app.primitives.outbox.tables import RECONCILE_DUE_INDEX, RECONCILE_INDEX
from app.primitives.outbox.tables import outbox_flows as flows
from app.primitives.outbox.tables import outbox_reconciliations as doubts

_FLOWS: Any = bindparam("flows", expanding=True)


def insert_doubts(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(doubts), list(rows))


def delete_doubts(tx: Tx, ids: Sequence[bytes]) -> None:
    """By primary key; those that are not there are nothing."""
    tx.conn.execute(delete(doubts).where(doubts.c.message_id.in_(IDS)), {"ids": list(ids)})


def select_doubts(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """Without a lock; by primary key."""
    return tx.conn.execute(select(doubts).where(doubts.c.message_id.in_(IDS)), {"ids": list(ids)}).all()


def lock_doubts(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """By primary key, ascending, waiting for whoever holds them."""
    query = select(doubts).where(doubts.c.message_id.in_(IDS)).order_by(doubts.c.message_id)
    return tx.conn.execute(tx.dialect.lock(query), {"ids": list(ids)}).all()


def any_doubts(tx: Tx) -> bool:
    return tx.conn.execute(select(literal(1)).select_from(doubts).limit(1)).first() is not None


# -- what is open ----------------------------------------------------------------------------------------------------------


def select_open_flows(tx: Tx, flow_ids: Sequence[int]) -> list[int]:
    """Those of these flows that have open doubts; by the claim's index."""
    query = select(doubts.c.flow_id).where(doubts.c.flow_id.in_(_FLOWS), doubts.c.state == int(Doubt.OPEN)).distinct()
    return [row.flow_id for row in tx.conn.execute(query, {"flows": list(flow_ids)})]


def select_open_names(tx: Tx, destinations: Sequence[str]) -> Rows:
    """(destination, type) of these destinations' flows that have open doubts."""
    query = (
        select(flows.c.destination, flows.c.type)
        .join_from(flows, doubts, doubts.c.flow_id == flows.c.id)
        .where(flows.c.destination.in_(bindparam("names", expanding=True)), doubts.c.state == int(Doubt.OPEN))
        .distinct()
    )
    return tx.conn.execute(query, {"names": list(destinations)}).all()


def lock_open(tx: Tx, flow_id: int, most: int) -> Rows:
    """Open doubts of a flow that nobody else holds, the oldest first; by the claim's index."""
    query = (
        select(doubts)
        .where(doubts.c.flow_id == flow_id, doubts.c.state == int(Doubt.OPEN))
        .order_by(doubts.c.opened_at, doubts.c.message_id)
        .limit(most)
    )
    return tx.conn.execute(tx.dialect.lock_free(tx.dialect.force_index(query, doubts, RECONCILE_INDEX))).all()


def update_taken(tx: Tx, ids: Sequence[bytes], taken: Mapping[str, Any], *, spent: int) -> int:
    """open -> held, as `taken` says. `spent`: how much of the budget that costs now."""
    change = (
        update(doubts)
        .where(doubts.c.message_id.in_(IDS), doubts.c.state == int(Doubt.OPEN))
        .values(state=int(Doubt.HELD), fence=doubts.c.fence + 1, attempt=doubts.c.attempt + spent, **taken)
    )
    return tx.conn.execute(change, {"ids": list(ids)}).rowcount


def select_granted(tx: Tx, grant: bytes, ids: Sequence[bytes]) -> Rows:
    """Those of these doubts that are held under this grant."""
    query = select(doubts).where(
        doubts.c.message_id.in_(IDS), doubts.c.grant_digest == grant, doubts.c.state == int(Doubt.HELD)
    )
    return tx.conn.execute(query, {"ids": list(ids)}).all()


def update_given_back(tx: Tx, grant: bytes, ids: Sequence[bytes]) -> None:
    """held -> open for a grant that reached nobody; it has cost nothing."""
    change = (
        update(doubts)
        .where(doubts.c.message_id.in_(IDS), doubts.c.grant_digest == grant, doubts.c.state == int(Doubt.HELD))
        .values(state=int(Doubt.OPEN), due_at=None, attempt=doubts.c.attempt - 1)
    )
    tx.conn.execute(change, {"ids": list(ids)})


# -- what is due -----------------------------------------------------------------------------------------------------------


def select_due(tx: Tx, state: Doubt, most: int) -> list[bytes]:
    """Messages whose doubt must be looked at, the longest due first, without a lock; by the index of what is due."""
    query = (
        select(doubts.c.message_id)
        .where(doubts.c.state == int(state), doubts.c.due_at <= tx.now)
        .order_by(doubts.c.due_at)
        .limit(most)
    )
    found = tx.conn.execute(tx.dialect.force_index(query, doubts, RECONCILE_DUE_INDEX))
    return [bytes(row.message_id) for row in found]


def update_state(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """What becomes of doubts that are locked (`b_message_id`, `b_state`, `b_due_at`, `b_attempt`); nobody holds them then,
    unless their state says so.
    """
    names = ("state", "due_at", "attempt")
    change = (
        update(doubts)
        .where(doubts.c.message_id == bindparam("b_message_id"))
        .values({name: bindparam(f"b_{name}", type_=doubts.c[name].type) for name in names})
    )
    tx.conn.execute(change, list(rows))


def update_jobs(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Which jobs find out (`b_message_id`, `b_job_id`)."""
    change = update(doubts).where(doubts.c.message_id == bindparam("b_message_id"))
    tx.conn.execute(change.values(job_id=bindparam("b_job_id", type_=doubts.c.job_id.type)), list(rows))


def count_needing_operator(tx: Tx) -> Rows:
    """(flow_id, amount) of unknown messages that wait for an operator."""
    query = select(doubts.c.flow_id, func.count().label("amount")).where(doubts.c.state == int(Doubt.OPERATOR))
    return tx.conn.execute(query.group_by(doubts.c.flow_id)).all()
