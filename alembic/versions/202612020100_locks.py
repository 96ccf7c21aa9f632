"""Locks, those who wait for them, and the fences of what was purged."""

from __future__ import annotations

from sqlalchemy import Column

from app.db import ddl
from app.db.metadata import Digest, Id, Key, Moment, Name, Past, Small, Text

revision = "202612020100"
down_revision = "202612010710"
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.create_table(
        "fence_floors",
        Column("kind", Name(32), primary_key=True),
        Column("fence", Moment, nullable=False),
    )
    ddl.create_table(
        "locks",
        Column("digest", Digest, primary_key=True),
        Column("name", Key, nullable=False),
        Column("state", Small, nullable=False),
        Column("due_at", Moment, nullable=False),
        Column("owner", Text(128)),
        Column("acquired_at", Moment),
        Column("awaited_until", Moment, nullable=False, server_default="0"),
        Column("fence", Moment, nullable=False, server_default="0"),
        Column("ended", Small, nullable=False, server_default="0"),
        Column("lease_micros", Moment),
        Column("grant_digest", Digest),
        Column("settlement_digest", Digest),
        Column("claim_digest", Digest),
        Column("sealed", Digest),
        Column("past", Past),
    )
    ddl.create_index("locks_due", "locks", ["state", "due_at", "digest"])
    ddl.create_table(
        "lock_waiters",
        Column("id", Digest, primary_key=True),
        Column("digest", Digest, nullable=False),
        Column("position", Moment, nullable=False),
        Column("number", Moment, nullable=False),
        Column("until", Moment, nullable=False),
        Column("process", Id, nullable=False),
    )
    ddl.create_index("lock_waiters_line", "lock_waiters", ["digest", "position", "number"])
    ddl.create_index("lock_waiters_due", "lock_waiters", ["until"])
    ddl.create_table(
        "lock_processes",
        Column("id", Id, primary_key=True),
        Column("alive_until", Moment, nullable=False),
    )


def downgrade() -> None:
    for table in ("lock_processes", "lock_waiters", "locks", "fence_floors"):
        ddl.drop_table(table)
