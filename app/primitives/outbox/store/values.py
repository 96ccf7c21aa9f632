"""Building blocks of the outbox's statements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Row, Select, bindparam

from app.db import values
from app.db.dialects.base import Dialect
from app.primitives.outbox.tables import outbox_messages as messages

Rows = Sequence[Row[*tuple[Any, ...]]]
IDS: BindParameter[Any] = bindparam("ids", expanding=True)
HOT = tuple(messages.c)
per_row = partial(values.per_row, by=messages.c.id)


def by_id(query: Select[Any]) -> Select[Any]:
    """Only the messages of the parameter `ids`, by primary key ascending."""
    return query.where(messages.c.id.in_(IDS)).order_by(messages.c.id)


def live(dialect: Dialect, shift: int) -> ColumnElement[bool]:
    """The lease has not ended by the database's own clock at the moment of the write."""
    return messages.c.due_at > dialect.now() + shift if shift else messages.c.due_at > dialect.now()
