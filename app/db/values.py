"""Values for SET that may differ from row to row, in statements that change many rows at once by their ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Column, ColumnElement, bindparam, case, literal

LARGE_GROUP = 16


def per_row(column: ColumnElement[Any], count: int, *, by: Column[Any]) -> ColumnElement[Any]:
    """A value for SET: one for all rows (count 0), or one for each of `count` rows, told by the column `by`, their id.
    `values_for` fills it.
    """
    name = column.name
    if not count:
        return bindparam(f"{name}_all", type_=column.type)
    pairs = [
        (bindparam(f"{name}_id{place}", type_=by.type), bindparam(f"{name}_{place}", type_=column.type))
        for place in range(count)
    ]
    return case(*pairs, value=by)


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
    for key in values[0]:
        groups[tuple(each[key] for each in values)].append(key)
    return list(groups.values()) if len(groups) * LARGE_GROUP <= len(values[0]) else [list(values[0])]


def assigned(values: Mapping[bytes, Any], column: ColumnElement[Any], *, by: Column[Any]) -> Any:
    """As `per_row`, with the values in it; for statements that are not hot. Keys: values of `by`."""
    distinct = set(values.values())
    if len(distinct) == 1:
        return literal(distinct.pop(), column.type)
    return case({key: literal(value, column.type) for key, value in values.items()}, value=by)
