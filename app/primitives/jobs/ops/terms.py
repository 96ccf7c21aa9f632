"""Terms: what contracts promise of a job type."""

from __future__ import annotations

import hashlib
from dataclasses import asdict

import jsonschema
import msgspec

from app.db.tx import Tx
from app.primitives.jobs.model.terms import Handler, Terms
from app.primitives.jobs.tables import job_terms


def put(tx: Tx, terms: Terms) -> None:
    """Keep the terms of a type."""
    text = msgspec.json.encode(asdict(terms))
    row = {
        "type": terms.type,
        "schema_version": terms.schema_version,
        "revision": hashlib.sha256(text).digest(),
        "terms": text,
        "updated_at": tx.now,
    }
    tx.conn.execute(tx.dialect.upsert(job_terms, [row], ["revision", "terms", "updated_at"]))


def check_schema(schema: bytes) -> str | None:
    """Why the schema does not compile; None if it does."""
    try:
        jsonschema.Draft202012Validator.check_schema(msgspec.json.decode(schema))
    except jsonschema.SchemaError:
        return "is not a JSON Schema (2020-12)"
    return None


def can_handle(handler: Handler) -> str | None:
    """Why this handler cannot be used; None if it can."""
    return None if handler.destination is None else "the outbox is not there yet"
