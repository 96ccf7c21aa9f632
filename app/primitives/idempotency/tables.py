"""Tables of idempotency. Indexes are named by the query that they serve."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table

from app.db.held import held_columns
from app.db.metadata import TABLE_OPTIONS, Count, Digest, Key, Moment, Name, Opaque, Small, metadata, named
from app.db.metadata import Text as Words

DUE_INDEX = named("idempotency_keys_due")

keys = Table(
    named("idempotency_keys"),
    metadata,
    Column("digest", Digest, primary_key=True),  # of scope and key; the key itself is stored nowhere
    Column("scope", Key, nullable=False),
    Column("fingerprint", Digest, nullable=False),  # of the request
    Column("state", Small, nullable=False),
    Column("due_at", Moment),  # running: when the lease ends; ended: when it may be purged; unknown: never
    Column("attempt", Count, nullable=False),
    Column("on_owner_lost", Small, nullable=False),
    Column("retention_micros", Moment, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("category", Name()),  # of the failure or the doubt
    Column("verdict_digest", Digest),
    *held_columns(),
    Index(DUE_INDEX, "state", "due_at", "digest"),
    **TABLE_OPTIONS,
)

# what was said of a key when its work ended
results = Table(
    named("idempotency_results"),
    metadata,
    Column("digest", Digest, primary_key=True),
    Column("result", Opaque),
    Column("message", Words(2000)),
    **TABLE_OPTIONS,
)
