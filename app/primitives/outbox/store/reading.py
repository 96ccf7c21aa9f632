"""SQL that reads for people: one message with its history, pages, and figures. Nothing here locks or marks.

A page is cut by one of three ways, so that its cost does not grow with the table:

    few     a named flow or state with at most `FEW` messages: their ids by the claim or the due index, then by primary key
    many    a named flow or state with more: by primary key from the newest on
    all     anything else: by primary key

The last two read at most `WINDOW` rows for one page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, func, literal, select

from app.db.tx import Tx
from app.primitives.outbox.model.states import State
from app.primitives.outbox.store.intake import SET_ASIDE
from app.primitives.outbox.store.values import HOT, IDS, Rows
from app.primitives.outbox.tables import (
    CLAIM_INDEX,
    DUE_INDEX,
    outbox,
    outbox_contents,
    outbox_events,
)
from app.primitives.outbox.tables import outbox_messages as messages

FEW = 2000
WINDOW = 20_000
_CONTENTS = tuple(column for column in outbox_contents.c if column.name not in ("message_id", "payload"))


@dataclass(frozen=True, slots=True)
class Narrow:
    """A filter in the words of the tables. None: any."""

    flow_ids: tuple[int, ...] | None = None
    states: tuple[State, ...] | None = None


def _narrowed(query: Select[Any], narrow: Narrow) -> Select[Any]:
    if narrow.flow_ids is not None:
        query = query.where(messages.c.flow_id.in_(list(narrow.flow_ids)))
    if narrow.states is not None:
        query = query.where(messages.c.state.in_([int(state) for state in narrow.states]))
    return query


def _told() -> Select[Any]:
    return select(*HOT, *_CONTENTS).join_from(messages, outbox_contents, outbox_contents.c.message_id == messages.c.id)


def select_message(tx: Tx, message_id: bytes) -> Row[Any] | None:
    return tx.conn.execute(_told().where(messages.c.id == message_id)).first()


def select_payload(tx: Tx, message_id: bytes) -> bytes | None:
    query = select(outbox_contents.c.payload).where(outbox_contents.c.message_id == message_id)
    return tx.conn.execute(query).scalar_one_or_none()


def select_events(tx: Tx, message_id: bytes) -> Rows:
    """Oldest first; by primary key."""
    query = select(outbox_events).where(outbox_events.c.message_id == message_id).order_by(outbox_events.c.id)
    return tx.conn.execute(query).all()


def select_few(tx: Tx, narrow: Narrow) -> list[bytes] | None:
    """Ids of all messages that the filter fits, or None if they are more than `FEW`. By the claim index alone where flows
    are named, else by the due index alone. No order.
    """
    query = _narrowed(select(messages.c.id), narrow).limit(FEW + 1)
    index = DUE_INDEX if narrow.flow_ids is None else CLAIM_INDEX
    found = [bytes(row.id) for row in tx.conn.execute(tx.dialect.force_index(query, messages, index))]
    return None if len(found) > FEW else found


def select_page_of(tx: Tx, ids: Sequence[bytes], narrow: Narrow, most: int) -> Rows:
    """Those of these messages that the filter fits, newest first. By primary key."""
    query = _narrowed(_told(), narrow).where(messages.c.id.in_(IDS)).order_by(messages.c.id.desc()).limit(most)
    return tx.conn.execute(query, {"ids": list(ids)}).all()


def select_floor(tx: Tx, after: bytes | None) -> bytes | None:
    """The id `WINDOW` messages below `after`, or None if there are not so many. By primary key alone."""
    query = _below(select(messages.c.id), after).order_by(messages.c.id.desc()).limit(1).offset(WINDOW)
    found = tx.conn.execute(query).scalar_one_or_none()
    return None if found is None else bytes(found)


def select_page(tx: Tx, narrow: Narrow, least: bytes | None, after: bytes | None, most: int) -> Rows:
    """Messages with `least` <= id < `after` that the filter fits, newest first. By primary key."""
    query = _below(_narrowed(_told(), narrow), after)
    if least is not None:
        query = query.where(messages.c.id >= least)
    return tx.conn.execute(query.order_by(messages.c.id.desc()).limit(most)).all()


def _below(query: Select[Any], after: bytes | None) -> Select[Any]:
    return query if after is None else query.where(messages.c.id < after)


# -- figures ---------------------------------------------------------------------------------------------------------------


def select_counts(tx: Tx) -> Rows:
    """(flow_id, state, amount, oldest available_at) of all messages; one grouped query, by the claim index alone."""
    query = select(
        messages.c.flow_id,
        messages.c.state,
        func.count().label("amount"),
        func.min(messages.c.available_at).label("oldest"),
    ).group_by(messages.c.flow_id, messages.c.state)
    return tx.conn.execute(tx.dialect.force_index(query, messages, CLAIM_INDEX)).all()


def count_set_aside(tx: Tx, most: int) -> int:
    """How many rows of producers were set aside, counted up to `most`."""
    some = select(literal(1).label("one")).where(outbox.c.state == SET_ASIDE).limit(most).subquery()
    return int(tx.conn.execute(select(func.count()).select_from(some)).scalar_one())
