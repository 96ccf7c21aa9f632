"""Building blocks of the jobs' statements: columns, and values for SET that may differ from row to row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Row, Select, bindparam, case, literal

from app.primitives.jobs.tables import jobs

Rows = Sequence[Row[*tuple[Any, ...]]]
IDS: BindParameter[Any] = bindparam("ids", expanding=True)
HOT = tuple(jobs.c)
LARGE_GROUP = 16


def by_id(query: Select[Any]) -> Select[Any]:
    """Only the jobs of the parameter `ids`, by primary key ascending."""
    return query.where(jobs.c.id.in_(IDS)).order_by(jobs.c.id)


def per_row(column: ColumnElement[Any], count: int) -> ColumnElement[Any]:
    """A value for SET: one for all rows (count 0), or one by id for each of `count` rows. `values_for` fills it."""
    name = column.name
    if not count:
        return bindparam(f"{name}_all", type_=column.type)
    pairs = [
        (bindparam(f"{name}_id{place}", type_=jobs.c.id.type), bindparam(f"{name}_{place}", type_=column.type))
        for place in range(count)
    ]
    return case(*pairs, value=jobs.c.id)


def values_for(name: str, values: Mapping[bytes, Any]) -> tuple[int, dict[str, Any]]:
    """How many rows need a value of their own, and the parameters for `per_row`.

    The number is rounded up to a power of two by repeating the last row, so that there are few shapes of a statement: to
    compile one costs as much as to run it many times.
    """
    distinct = set(values.values())
    if len(distinct) == 1:
        return 0, {f"{name}_all": distinct.pop()}
    filled: dict[str, Any] = {}
    place = 0
    for place, (key, value) in enumerate(values.items()):
        filled[f"{name}_id{place}"], filled[f"{name}_{place}"] = key, value
    count = 1 << place.bit_length()
    for more in range(place + 1, count):
        filled[f"{name}_id{more}"], filled[f"{name}_{more}"] = key, value
    return count, filled


def alike(*values: Mapping[bytes, Any]) -> list[list[bytes]]:
    """The ids that the mappings have in common, in groups that share all their values if such groups are large, else in one.

    A statement for each group is cheaper than one with a CASE that has a branch for each row.
    """
    groups: dict[tuple[Any, ...], list[bytes]] = defaultdict(list)
    for job_id in values[0]:
        groups[tuple(each[job_id] for each in values)].append(job_id)
    return list(groups.values()) if len(groups) * LARGE_GROUP <= len(values[0]) else [list(values[0])]


def assigned(values: Mapping[bytes, Any], column: ColumnElement[Any]) -> Any:
    """As `per_row`, with the values in it; for statements that are not hot. Keys: job ids."""
    distinct = set(values.values())
    if len(distinct) == 1:
        return literal(distinct.pop(), column.type)
    return case({key: literal(value, column.type) for key, value in values.items()}, value=jobs.c.id)
