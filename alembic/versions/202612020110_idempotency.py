"""Idempotency keys and what was said of them."""

from __future__ import annotations

from sqlalchemy import Column

from app.db import ddl
from app.db.metadata import Count, Digest, Key, Moment, Name, Opaque, Past, Small, Text

revision = "202612020110"
down_revision = "202612020100"
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.create_table(
        "idempotency_keys",
        Column("digest", Digest, primary_key=True),
        Column("scope", Key, nullable=False),
        Column("fingerprint", Digest, nullable=False),
        Column("state", Small, nullable=False),
        Column("due_at", Moment),
        Column("attempt", Count, nullable=False),
        Column("on_owner_lost", Small, nullable=False),
        Column("retention_micros", Moment, nullable=False),
        Column("created_at", Moment, nullable=False),
        Column("ended_at", Moment),
        Column("category", Name()),
        Column("verdict_digest", Digest),
        Column("fence", Moment, nullable=False, server_default="0"),
        Column("ended", Small, nullable=False, server_default="0"),
        Column("lease_micros", Moment),
        Column("grant_digest", Digest),
        Column("settlement_digest", Digest),
        Column("claim_digest", Digest),
        Column("sealed", Digest),
        Column("past", Past),
    )
    ddl.create_index("idempotency_keys_due", "idempotency_keys", ["state", "due_at", "digest"])
    ddl.create_table(
        "idempotency_results",
        Column("digest", Digest, primary_key=True),
        Column("result", Opaque),
        Column("message", Text(2000)),
    )


def downgrade() -> None:
    for table in ("idempotency_results", "idempotency_keys"):
        ddl.drop_table(table)
