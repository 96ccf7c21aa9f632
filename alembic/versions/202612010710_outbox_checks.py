"""Prepared messages: what is to be asked about them."""

from __future__ import annotations

from sqlalchemy import Column

from app.db import ddl
from app.db.metadata import Count, Id, Moment, Opaque, Serial, Small, Text

revision = "202612010710"
down_revision = "202612010700"
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.create_table(
        "outbox_checks",
        Column("message_id", Id, primary_key=True),
        Column("flow_id", Serial, nullable=False),
        Column("state", Small, nullable=False),
        Column("decide_at", Moment, nullable=False),
        Column("url", Opaque),
        Column("asked", Count, nullable=False, server_default="0"),
        Column("failures", Count, nullable=False, server_default="0"),
        Column("answer", Text(500)),
        Column("answered_at", Moment),
    )
    ddl.create_index("outbox_checks_state", "outbox_checks", ["state", "flow_id"])


def downgrade() -> None:
    ddl.drop_table("outbox_checks")
