"""Building blocks of the jobs' statements: columns, and values for SET that may differ from row to row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import BindParameter, Row, Select, bindparam

from app.db import values
from app.db.values import LARGE_GROUP, alike, values_for
from app.primitives.jobs.tables import jobs

__all__ = ["HOT", "IDS", "LARGE_GROUP", "Rows", "alike", "assigned", "by_id", "per_row", "values_for"]

Rows = Sequence[Row[*tuple[Any, ...]]]
IDS: BindParameter[Any] = bindparam("ids", expanding=True)
HOT = tuple(jobs.c)
per_row = partial(values.per_row, by=jobs.c.id)
assigned = partial(values.assigned, by=jobs.c.id)


def by_id(query: Select[Any]) -> Select[Any]:
    """Only the jobs of the parameter `ids`, by primary key ascending."""
    return query.where(jobs.c.id.in_(IDS)).order_by(jobs.c.id)
