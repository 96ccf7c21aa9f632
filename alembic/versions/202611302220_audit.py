"""Audit: who did what, when and why."""

from __future__ import annotations

from sqlalchemy import Column

from app.db import ddl
from app.db.metadata import Id, Moment, Name, Opaque, Text

revision = "202611302220"
down_revision = "202611302210"
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.create_table(
        "audit",
        Column("id", Id, primary_key=True),
        Column("at", Moment, nullable=False),
        Column("actor", Name(64), nullable=False),
        Column("actor_name", Text(200), nullable=False),
        Column("action", Name(64), nullable=False),
        Column("kind", Name(64), nullable=False),
        Column("target", Text(300), nullable=False),
        Column("reason", Text(500)),
        Column("request_id", Name(128)),
        Column("details", Opaque, nullable=False),
    )
    ddl.create_index("audit_target", "audit", ["kind", "target", "id"])


def downgrade() -> None:
    ddl.drop_table("audit")
