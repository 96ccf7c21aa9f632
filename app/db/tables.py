"""Tables of the service itself. A primitive's tables stand in its own `tables.py`; revisions are written by hand from both."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table

from app.db.metadata import TABLE_OPTIONS, Digest, Moment, Name, Small, Text, metadata, named

# One row, made once: the key under which every reservation token of this installation is made.
installation = Table(
    named("installation"),
    metadata,
    Column("id", Small, primary_key=True, autoincrement=False),
    Column("token_key", Digest, nullable=False),
    Column("created_at", Moment, nullable=False),
    **TABLE_OPTIONS,
)

# One row: who migrates the schema, until when. Made before the first revision runs, so no revision makes or drops it.
migration_lock = Table(
    named("migration_lock"),
    metadata,
    Column("id", Small, primary_key=True, autoincrement=False),
    Column("holder", Name(64), nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("lease_until", Moment, nullable=False),
    **TABLE_OPTIONS,
)

# One row for each replica that proves by a real write that the database takes writes.
heartbeats = Table(
    named("heartbeats"),
    metadata,
    Column("name", Name(128), primary_key=True),
    Column("beat_at", Moment, nullable=False),
    **TABLE_OPTIONS,
)

# Two rows for the length of one probe of SKIP LOCKED. `run` is random, so that probes of several replicas never meet.
probes = Table(
    named("probes"),
    metadata,
    Column("run", BigInteger, primary_key=True, autoincrement=False),
    Column("number", Small, primary_key=True, autoincrement=False),
    Column("created_at", Moment, nullable=False),
    **TABLE_OPTIONS,
)

# For each kind of thing that is held: the highest fence of rows that were purged (`app.db.held`).
fence_floors = Table(
    named("fence_floors"),
    metadata,
    Column("kind", Name(32), primary_key=True),
    Column("fence", Moment, nullable=False),
    **TABLE_OPTIONS,
)

api_keys = Table(
    named("api_keys"),
    metadata,
    Column("id", Name(64), primary_key=True),
    Column(
        "digest", Digest, nullable=False
    ),  # SHA-256 of the key's secret; the secret itself is shown once and kept nowhere
    Column("name", Text(200), nullable=False),
    Column("roles", Name(200), nullable=False),  # comma-separated
    Column("patterns", Text(4000), nullable=False),  # JSON list of name patterns
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Column("revoked_at", Moment),
    Column("last_used_at", Moment),
    Index(named("api_keys_digest"), "digest", unique=True),
    **TABLE_OPTIONS,
)
