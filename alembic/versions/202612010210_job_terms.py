"""Jobs: what contracts promise of a job type."""

from __future__ import annotations

from sqlalchemy import Column, PrimaryKeyConstraint

from app.db import ddl
from app.db.metadata import Count, Digest, Moment, Name, Opaque

revision = "202612010210"
down_revision = "202612010200"
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.add_column("queues", Column("contract_policy", Name(16)))
    ddl.create_table(
        "job_terms",
        Column("type", Name(), nullable=False),
        Column("schema_version", Count, nullable=False),
        Column("revision", Digest, nullable=False),
        Column("terms", Opaque, nullable=False),
        Column("updated_at", Moment, nullable=False),
        PrimaryKeyConstraint("type", "schema_version"),
    )


def downgrade() -> None:
    ddl.drop_table("job_terms")
    ddl.drop_column("queues", "contract_policy")
