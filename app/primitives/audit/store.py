"""SQL of the audit: one function for each statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, select

from app.db.tx import Tx
from app.primitives.audit.model import Filter
from app.primitives.audit.tables import audit


def insert_entries(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add entries; those whose id is there already stay as they are."""
    tx.conn.execute(tx.dialect.insert_missing(audit, rows))


def select_entries(tx: Tx, wanted: Filter) -> Sequence[Row[Any]]:
    """At most `limit` + 1 entries, newest first: by primary key, or by `audit_target` when kind and target are given."""
    query = select(audit).order_by(audit.c.id.desc()).limit(wanted.limit + 1)
    if wanted.before is not None:
        query = query.where(audit.c.id < wanted.before)
    for column, value in (
        (audit.c.actor, wanted.actor),
        (audit.c.action, wanted.action),
        (audit.c.kind, wanted.kind),
        (audit.c.target, wanted.target),
    ):
        if value is not None:
            query = query.where(column == value)
    if wanted.since is not None:
        query = query.where(audit.c.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(audit.c.at < wanted.until)
    return tx.conn.execute(query).all()
