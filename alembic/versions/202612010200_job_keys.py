"""Jobs: unique, debounce and concurrency keys."""

from __future__ import annotations

from sqlalchemy import Column, UniqueConstraint

from app.db import ddl
from app.db.metadata import Count, Digest, Id, Key, Moment, Small, named

revision = "202612010200"
down_revision = "202611302220"
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.add_column("jobs", Column("marks", Small, nullable=False, server_default="0"))
    ddl.add_column("job_keys", Column("deduplicated", Small, nullable=False, server_default="0"))
    ddl.create_table(
        "job_uniques",
        Column("job_id", Id, primary_key=True),
        Column("digest", Digest, nullable=False),
        Column("holding", Digest),
        Column("name", Key, nullable=False),
        Column("latest_at", Moment),
        Column("newest", Id, nullable=False),
        UniqueConstraint("holding", name=named("job_uniques_holding")),
    )
    ddl.create_table(
        "job_limits",
        Column("digest", Digest, primary_key=True),
        Column("name", Key, nullable=False),
        Column("most", Count, nullable=False),
        Column("last_position", Moment, nullable=False),
        Column("turn", Moment, nullable=False, server_default="0"),
    )
    ddl.create_table(
        "job_slots",
        Column("job_id", Id, primary_key=True),
        Column("digest", Digest, nullable=False),
        Column("place", Small, nullable=False),
        Column("priority", Small, nullable=False),
        Column("position", Moment, nullable=False),
    )
    ddl.create_index("job_slots_line", "job_slots", ["digest", "place", "priority", "position"])


def downgrade() -> None:
    ddl.drop_table("job_slots")
    ddl.drop_table("job_limits")
    ddl.drop_table("job_uniques")
    ddl.drop_column("job_keys", "deduplicated")
    ddl.drop_column("jobs", "marks")
