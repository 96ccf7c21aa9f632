"""Jobs: queues, flows, jobs and what belongs to them."""

from __future__ import annotations

from sqlalchemy import Column, PrimaryKeyConstraint, UniqueConstraint

from app.db import ddl
from app.db.metadata import Count, Digest, Id, Moment, Name, Opaque, Serial, Small, Text, named

revision = "202611302210"
down_revision = "202611302200"
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.create_table(
        "queues",
        Column("name", Name(), primary_key=True),
        Column("paused_at", Moment),
        Column("paused_reason", Text(500)),
        Column("max_depth", Count),
        Column("retention_seconds", Moment),
        Column("description", Text(1000), nullable=False),
        Column("created_at", Moment, nullable=False),
        Column("updated_at", Moment, nullable=False),
    )
    ddl.create_table(
        "flows",
        Column("id", Serial, primary_key=True, autoincrement=True),
        Column("queue", Name(), nullable=False),
        Column("type", Name(), nullable=False),
        Column("schema_version", Count, nullable=False),
        UniqueConstraint("queue", "type", "schema_version", name=named("flows_name")),
    )
    ddl.create_table(
        "jobs",
        Column("id", Id, primary_key=True),
        Column("flow_id", Serial, nullable=False),
        Column("state", Small, nullable=False),
        Column("priority", Small, nullable=False),
        Column("available_at", Moment, nullable=False),
        Column("due_at", Moment),
        Column("fence", Count, nullable=False, server_default="0"),
        Column("attempt", Count, nullable=False, server_default="0"),
        Column("lease_losses", Count, nullable=False, server_default="0"),
        Column("releases", Count, nullable=False, server_default="0"),
        Column("throttles", Count, nullable=False, server_default="0"),
        Column("max_attempts", Count, nullable=False),
        Column("timeout_micros", Moment, nullable=False),
        Column("lease_micros", Moment),
        Column("retry_until", Moment),
        Column("created_at", Moment, nullable=False),
        Column("claimed_at", Moment),
        Column("ended_at", Moment),
        Column("cancel_requested_at", Moment),
        Column("worker", Text(128)),
        Column("category", Name()),
        Column("ended_request_id", Name()),
        Column("grant_digest", Digest),
        Column("settlement_digest", Digest),
    )
    ddl.create_index("jobs_claim", "jobs", ["flow_id", "state", "priority", "available_at", "id"])
    ddl.create_index("jobs_due", "jobs", ["state", "due_at", "id"])
    ddl.create_table(
        "job_contents",
        Column("job_id", Id, primary_key=True),
        Column("payload", Opaque, nullable=False),
        Column("correlation_id", Text(255)),
        Column("parent_operation_id", Text(255)),
        Column("traceparent", Name(64)),
        Column("tracestate", Name(512)),
        Column("request_id", Name(), nullable=False),
        Column("created_by", Name(), nullable=False),
    )
    ddl.create_table(
        "job_results",
        Column("job_id", Id, primary_key=True),
        Column("result", Opaque, nullable=False),
    )
    ddl.create_table(
        "job_progress",
        Column("job_id", Id, primary_key=True),
        Column("progress", Opaque, nullable=False),
        Column("updated_at", Moment, nullable=False),
    )
    ddl.create_table(
        "job_keys",
        Column("digest", Digest, primary_key=True),
        Column("job_id", Id, nullable=False),
        Column("fingerprint", Digest, nullable=False),
    )
    ddl.create_index("job_keys_job", "job_keys", ["job_id"])
    ddl.create_table(
        "job_refs",
        Column("kind", Small, nullable=False),
        Column("digest", Digest, nullable=False),
        Column("job_id", Id, nullable=False),
        PrimaryKeyConstraint("kind", "digest", "job_id"),
    )
    ddl.create_index("job_refs_job", "job_refs", ["job_id"])
    ddl.create_table(
        "job_events",
        Column("job_id", Id, nullable=False),
        Column("id", Id, nullable=False),
        Column("at", Moment, nullable=False),
        Column("kind", Name(32), nullable=False),
        Column("attempt", Count),
        Column("fence", Count),
        Column("claimed_at", Moment),
        Column("worker", Text(128)),
        Column("category", Name()),
        Column("message", Text(2000)),
        Column("reference", Text(255)),
        Column("actor", Name()),
        Column("request_id", Name()),
        Column("grant_digest", Digest),
        Column("settlement_digest", Digest),
        Column("detail", Opaque),
        PrimaryKeyConstraint("job_id", "id"),
    )
    ddl.create_table(
        "job_claims",
        Column("digest", Digest, primary_key=True),
        Column("sealed", Digest, nullable=False),
        Column("grant_digest", Digest, nullable=False),
        Column("job_ids", Opaque, nullable=False),
        Column("purge_at", Moment, nullable=False),
    )
    ddl.create_index("job_claims_purge", "job_claims", ["purge_at"])
    ddl.create_table(
        "job_figures",
        Column("flow_id", Serial, nullable=False),
        Column("minute", Moment, nullable=False),
        Column("figure", Small, nullable=False),
        Column("amount", Moment, nullable=False),
        PrimaryKeyConstraint("flow_id", "minute", "figure"),
    )
    ddl.create_index("job_figures_minute", "job_figures", ["minute"])
    ddl.create_table(
        "job_workers",
        Column("digest", Digest, primary_key=True),
        Column("worker", Text(128), nullable=False),
        Column("queue", Name(), nullable=False),
        Column("handlers", Opaque, nullable=False),
        Column("last_claimed_at", Moment),
        Column("last_beat_at", Moment),
        Column("seen_at", Moment, nullable=False),
    )
    ddl.create_index("job_workers_seen", "job_workers", ["seen_at"])


def downgrade() -> None:
    for name in (
        "job_workers",
        "job_figures",
        "job_claims",
        "job_events",
        "job_refs",
        "job_keys",
        "job_progress",
        "job_results",
        "job_contents",
        "jobs",
        "flows",
        "queues",
    ):
        ddl.drop_table(name)
