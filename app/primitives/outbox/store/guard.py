"""SQL of the development guard: a trigger on the table that producers write to. Its text is the dialect's."""

from __future__ import annotations

from sqlalchemy import literal, select

from app.db.dialects.base import TransactionGuard
from app.db.metadata import named
from app.db.tx import Tx
from app.primitives.outbox.tables import outbox

NAME = named("outbox_guard")


def guard_of(tx: Tx) -> TransactionGuard:
    return tx.dialect.transaction_guard(NAME, outbox.name)


def is_there(tx: Tx) -> bool:
    return bool(tx.conn.exec_driver_sql(guard_of(tx).count).scalar_one())


def is_shown(tx: Tx) -> bool:
    """Whether this very server shows a transaction to the one who is in it."""
    proof = guard_of(tx).proof
    if proof is None:
        return True
    tx.conn.execute(select(literal(1)).select_from(outbox).limit(1)).all()
    return bool(tx.conn.exec_driver_sql(proof).scalar_one())


def create(tx: Tx) -> None:
    """It must not be there."""
    for statement in guard_of(tx).create:
        tx.conn.exec_driver_sql(statement)


def drop(tx: Tx) -> None:
    for statement in guard_of(tx).drop:
        tx.conn.exec_driver_sql(statement)
