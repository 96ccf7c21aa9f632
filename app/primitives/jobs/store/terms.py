"""SQL of terms, and of the policies of queues. `job_terms` has one row for each type and version under contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, select

from app.db.tx import Tx
from app.primitives.jobs.store.values import Rows
from app.primitives.jobs.tables import job_terms, queues

_OF_TYPES = job_terms.c.type.in_(bindparam("types", expanding=True))
_ALL_REVISIONS = select(job_terms.c.type, job_terms.c.schema_version, job_terms.c.revision)
_REVISIONS = _ALL_REVISIONS.where(_OF_TYPES)
# most transactions enqueue one type, and a list costs more to send than the row costs to find
_REVISIONS_OF_ONE = _ALL_REVISIONS.where(job_terms.c.type == bindparam("one", type_=job_terms.c.type.type))
_TERMS = select(job_terms).where(_OF_TYPES)


def select_revisions(tx: Tx, types: Sequence[str]) -> Rows:
    """(type, schema_version, revision) of every version of these types; by the first column of the primary key."""
    if len(types) == 1:
        return tx.conn.execute(_REVISIONS_OF_ONE, {"one": types[0]}).all()
    return tx.conn.execute(_REVISIONS, {"types": list(types)}).all()


def select_terms(tx: Tx, types: Sequence[str]) -> Rows:
    """Whole rows of every version of these types; by the first column of the primary key."""
    return tx.conn.execute(_TERMS, {"types": list(types)}).all()


def upsert_terms(tx: Tx, row: Mapping[str, Any]) -> None:
    """Make or replace the terms of one type and version; by primary key."""
    tx.conn.execute(tx.dialect.upsert(job_terms, [row], ["revision", "terms", "updated_at"]))


def select_policies(tx: Tx, names: Sequence[str]) -> Rows:
    """(name, contract_policy) of these queues; by primary key."""
    query = select(queues.c.name, queues.c.contract_policy).where(queues.c.name.in_(bindparam("names", expanding=True)))
    return tx.conn.execute(query, {"names": list(names)}).all()
