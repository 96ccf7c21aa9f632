"""Cache: namespaces with their policies, and entries."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column

from app.db import ddl
from app.db.metadata import Digest, Moment, Name, Opaque, Past, Small

revision = "202612070100"
down_revision = "202612020110"
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.create_table(
        "cache_namespaces",
        Column("name", Name(), primary_key=True),
        Column("generation", Moment, nullable=False),
        Column("swept", Moment, nullable=False),
        Column("fence", Moment, nullable=False),
        Column("entries", Moment, nullable=False),
        Column("bytes", Moment, nullable=False),
        Column("policy_at", Moment),
        Column("ttl_micros", Moment),
        Column("stale_micros", Moment, nullable=False),
        Column("version", Name()),
        Column("on_failure", Small, nullable=False),
        Column("max_entries", BigInteger()),
        Column("max_bytes", BigInteger()),
    )
    ddl.create_table(
        "cache_entries",
        Column("digest", Digest, primary_key=True),
        Column("namespace", Name(), nullable=False),
        Column("generation", Moment, nullable=False),
        Column("value", Opaque),
        Column("size", Moment, nullable=False),
        Column("version", Name()),
        Column("stored_at", Moment),
        Column("fresh_until", Moment),
        Column("stale_until", Moment),
        Column("used_at", Moment, nullable=False),
        Column("fill_until", Moment),
        Column("due_at", Moment, nullable=False),
        Column("fence", Moment, nullable=False, server_default="0"),
        Column("ended", Small, nullable=False, server_default="0"),
        Column("lease_micros", Moment),
        Column("grant_digest", Digest),
        Column("settlement_digest", Digest),
        Column("claim_digest", Digest),
        Column("sealed", Digest),
        Column("past", Past),
    )
    ddl.create_index("cache_entries_due", "cache_entries", ["due_at", "digest"])
    ddl.create_index("cache_entries_used", "cache_entries", ["namespace", "generation", "used_at", "digest"])


def downgrade() -> None:
    for table in ("cache_entries", "cache_namespaces"):
        ddl.drop_table(table)
