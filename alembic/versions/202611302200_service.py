"""The service's own tables: installation, heartbeats, probes, api_keys.

The migration lock is not made here: it exists before the first revision runs (see app/db/migration_lock.py).
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column

from app.db import ddl
from app.db.metadata import Digest, Moment, Name, Small, Text

revision = "202611302200"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.create_table(
        "installation",
        Column("id", Small, primary_key=True, autoincrement=False),
        Column("token_key", Digest, nullable=False),
        Column("created_at", Moment, nullable=False),
    )
    ddl.create_table(
        "heartbeats",
        Column("name", Name(128), primary_key=True),
        Column("beat_at", Moment, nullable=False),
    )
    ddl.create_table(
        "probes",
        Column("run", BigInteger, primary_key=True, autoincrement=False),
        Column("number", Small, primary_key=True, autoincrement=False),
        Column("created_at", Moment, nullable=False),
    )
    ddl.create_table(
        "api_keys",
        Column("id", Name(64), primary_key=True),
        Column("digest", Digest, nullable=False),
        Column("name", Text(200), nullable=False),
        Column("roles", Name(200), nullable=False),
        Column("patterns", Text(4000), nullable=False),
        Column("created_at", Moment, nullable=False),
        Column("expires_at", Moment),
        Column("revoked_at", Moment),
        Column("last_used_at", Moment),
    )
    ddl.create_index("api_keys_digest", "api_keys", ["digest"], unique=True)


def downgrade() -> None:
    for name in ("api_keys", "probes", "heartbeats", "installation"):
        ddl.drop_table(name)
