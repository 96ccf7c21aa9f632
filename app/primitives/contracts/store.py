"""SQL of contracts: one function for each statement, all by primary key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, or_, select, update

from app.db.tx import Tx
from app.primitives.contracts.tables import contracts

Rows = Sequence[Row[Any]]


def insert_contract(tx: Tx, row: Mapping[str, Any]) -> None:
    """Add the contract unless there is one of this type and version."""
    tx.conn.execute(tx.dialect.insert_missing(contracts, [row]))


def lock_contract(tx: Tx, type_: str, version: int) -> Row[Any]:
    """Lock one contract, which must be there."""
    query = select(contracts).where(contracts.c.type == type_, contracts.c.schema_version == version)
    return tx.conn.execute(tx.dialect.lock(query)).one()


def update_contract(tx: Tx, type_: str, version: int, values: Mapping[str, Any]) -> None:
    """Write over a contract that is locked."""
    mine = (contracts.c.type == type_, contracts.c.schema_version == version)
    tx.conn.execute(update(contracts).where(*mine).values(**values))


def select_contract(tx: Tx, type_: str, version: int) -> Row[Any] | None:
    query = select(contracts).where(contracts.c.type == type_, contracts.c.schema_version == version)
    return tx.conn.execute(query).first()


def select_contracts(tx: Tx, after: tuple[str, int] | None, most: int | None) -> Rows:
    """By type and version, from the one after `after` on; at most `most`."""
    query = select(contracts).order_by(contracts.c.type, contracts.c.schema_version)
    if after is not None:
        type_, version = after
        later = (contracts.c.type == type_) & (contracts.c.schema_version > version)
        query = query.where(or_(contracts.c.type > type_, later))
    return tx.conn.execute(query if most is None else query.limit(most)).all()
