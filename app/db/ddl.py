"""Guarded DDL for revisions: each helper looks first, so a revision that was cut short converges when it runs again.

MySQL and MariaDB commit every DDL statement by itself; between two of them the process may die. Before each statement the
migration lock is asked whether it is still ours. With `--sql` (offline) there is nothing to look at, and all is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, Inspector, inspect
from sqlalchemy.schema import SchemaItem

from alembic import op
from app.db.metadata import TABLE_OPTIONS, named

# what a runner puts into the migration context's options, called before every statement
BEFORE_DDL = "tenure_before_ddl"


def _may_run(is_wanted: Callable[[Inspector], bool]) -> bool:
    """Ask the lock, then the schema. Offline: always."""
    context = op.get_context()
    if context.as_sql:
        return True
    before = context.opts.get(BEFORE_DDL)
    if before is not None:
        before()
    return is_wanted(inspect(op.get_bind()))


def _has_index(seen: Inspector, table: str, index: str) -> bool:
    return seen.has_table(table) and any(one["name"] == index for one in seen.get_indexes(table))


def _has_column(seen: Inspector, table: str, column: str) -> bool:
    return any(one["name"] == column for one in seen.get_columns(table))


def create_table(name: str, *items: SchemaItem, **options: Any) -> None:
    """Create the table `name` (without the prefix) if it is not there."""
    table = named(name)
    if _may_run(lambda seen: not seen.has_table(table)):
        op.create_table(table, *items, **TABLE_OPTIONS, **options)


def drop_table(name: str) -> None:
    table = named(name)
    if _may_run(lambda seen: seen.has_table(table)):
        op.drop_table(table)


def create_index(name: str, table: str, columns: list[str], *, unique: bool = False, **options: Any) -> None:
    """Create the index `name` on `table` (both without the prefix) if it is not there."""
    index, on = named(name), named(table)
    if _may_run(lambda seen: not _has_index(seen, on, index)):
        op.create_index(index, on, columns, unique=unique, **options)


def drop_index(name: str, table: str) -> None:
    index, on = named(name), named(table)
    if _may_run(lambda seen: _has_index(seen, on, index)):
        op.drop_index(index, table_name=on)


def add_column(table: str, column: Column[Any]) -> None:
    """Add the column if it is not there. It must be nullable or have a server default: release N-1 still inserts."""
    on = named(table)
    if _may_run(lambda seen: not _has_column(seen, on, column.name)):
        op.add_column(on, column)


def drop_column(table: str, name: str) -> None:
    on = named(table)
    if _may_run(lambda seen: _has_column(seen, on, name)):
        op.drop_column(on, name)
