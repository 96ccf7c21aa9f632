"""Tables of the cache. Indexes are named by the query that they serve."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table

from app.db.held import held_columns
from app.db.metadata import TABLE_OPTIONS, Digest, Moment, Name, Opaque, Small, metadata, named

DUE_INDEX = named("cache_entries_due")
USED_INDEX = named("cache_entries_used")

namespaces = Table(
    named("cache_namespaces"),
    metadata,
    Column("name", Name(), primary_key=True),
    Column("generation", Moment, nullable=False),  # entries of an earlier one are not there
    Column("swept", Moment, nullable=False),  # no row of an earlier generation than this is left
    Column("fence", Moment, nullable=False),  # the highest that was given out here
    Column("entries", Moment, nullable=False),  # values of this generation
    Column("bytes", Moment, nullable=False),
    Column("policy_at", Moment),  # when the policy was set; null: there is none
    Column("ttl_micros", Moment),
    Column("stale_micros", Moment, nullable=False),
    Column("version", Name()),
    Column("on_failure", Small, nullable=False),
    Column("max_entries", BigInteger()),
    Column("max_bytes", BigInteger()),
    **TABLE_OPTIONS,
)

# a row stands for a value, for the filling of one, or for both
entries = Table(
    named("cache_entries"),
    metadata,
    Column("digest", Digest, primary_key=True),  # of namespace and key
    Column("namespace", Name(), nullable=False),
    Column("generation", Moment, nullable=False),
    Column("value", Opaque),  # null: there is none
    Column("size", Moment, nullable=False),
    Column("version", Name()),
    Column("stored_at", Moment),
    Column("fresh_until", Moment),
    Column("stale_until", Moment),
    Column("used_at", Moment, nullable=False),
    Column("fill_until", Moment),  # when the lease of the filler ends
    Column("due_at", Moment, nullable=False),  # when nothing of the row counts any more
    *held_columns(),
    Index(DUE_INDEX, "due_at", "digest"),
    Index(USED_INDEX, "namespace", "generation", "used_at", "digest"),
    **TABLE_OPTIONS,
)
