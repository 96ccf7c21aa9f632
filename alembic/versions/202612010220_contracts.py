"""Contracts: what job types promise."""

from __future__ import annotations

from sqlalchemy import Column, PrimaryKeyConstraint

from app.db import ddl
from app.db.metadata import Count, Digest, Id, Moment, Name, Opaque

revision = "202612010220"
down_revision = "202612010210"
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.create_table(
        "contracts",
        Column("type", Name(), nullable=False),
        Column("schema_version", Count, nullable=False),
        Column("document", Opaque, nullable=False),
        Column("digest", Digest, nullable=False),
        Column("put_id", Id, nullable=False),
        Column("created_at", Moment, nullable=False),
        Column("created_by", Name(64), nullable=False),
        Column("updated_at", Moment, nullable=False),
        Column("updated_by", Name(64), nullable=False),
        PrimaryKeyConstraint("type", "schema_version"),
    )


def downgrade() -> None:
    ddl.drop_table("contracts")
