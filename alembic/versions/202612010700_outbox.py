"""The outbox: what producers write, messages, destinations, lines, reconciliations."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, UniqueConstraint

from app.db import ddl
from app.db.metadata import (
    Count,
    Counter,
    Digest,
    Id,
    Key,
    Moment,
    Name,
    Now,
    Opaque,
    Serial,
    Small,
    Text,
    Whole,
    named,
)

revision = "202612010700"
down_revision = "202612010220"
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.create_table(
        "outbox",
        Column("id", Counter, primary_key=True, autoincrement=True),
        Column("message_key", Text(512), nullable=False),
        Column("type", Text(512), nullable=False),
        Column("destination", Text(512), nullable=False),
        Column("payload", Whole, nullable=False),
        Column("schema_version", BigInteger, nullable=False, server_default="1"),
        Column("occurred_at", BigInteger),
        Column("available_at", BigInteger),
        Column("ordering_key", Text(512)),
        Column("correlation_id", Text(512)),
        Column("target_reference", Text(512)),
        Column("max_attempts", BigInteger),
        Column("state", Name(16), nullable=False, server_default="pending"),
        Column("reason", Text(500)),
        Column("recorded_at", BigInteger, nullable=False, server_default=Now()),
        sqlite_autoincrement=True,
    )
    ddl.create_index("outbox_state", "outbox", ["state", "id"])
    ddl.create_table(
        "outbox_destinations",
        Column("name", Name(), primary_key=True),
        Column("config", Opaque, nullable=False),
        Column("sealed", Opaque),
        Column("created_at", Moment, nullable=False),
        Column("updated_at", Moment, nullable=False),
    )
    ddl.create_table(
        "outbox_flows",
        Column("id", Serial, primary_key=True, autoincrement=True),
        Column("destination", Name(), nullable=False),
        Column("type", Name(), nullable=False),
        UniqueConstraint("destination", "type", name=named("outbox_flows_name")),
    )
    ddl.create_table(
        "outbox_messages",
        Column("id", Id, primary_key=True),
        Column("flow_id", Serial, nullable=False),
        Column("state", Small, nullable=False),
        Column("available_at", Moment, nullable=False),
        Column("due_at", Moment),
        Column("fence", Count, nullable=False, server_default="0"),
        Column("attempt", Count, nullable=False, server_default="0"),
        Column("lease_losses", Count, nullable=False, server_default="0"),
        Column("releases", Count, nullable=False, server_default="0"),
        Column("max_attempts", Count),
        Column("lease_micros", Moment),
        Column("created_at", Moment, nullable=False),
        Column("claimed_at", Moment),
        Column("ended_at", Moment),
        Column("worker", Text(128)),
        Column("category", Name()),
        Column("reference", Text(255)),
        Column("grant_digest", Digest),
        Column("settlement_digest", Digest),
        Column("ended_request_id", Name()),
        Column("ordered", Small, nullable=False, server_default="0"),
    )
    ddl.create_index("outbox_messages_claim", "outbox_messages", ["flow_id", "state", "available_at", "id"])
    ddl.create_index("outbox_messages_due", "outbox_messages", ["state", "due_at", "id"])
    ddl.create_table(
        "outbox_contents",
        Column("message_id", Id, primary_key=True),
        Column("message_key", Key, nullable=False),
        Column("schema_version", Count, nullable=False),
        Column("payload", Opaque, nullable=False),
        Column("occurred_at", Moment, nullable=False),
        Column("ordering_key", Key),
        Column("correlation_id", Text(255)),
        Column("target_reference", Text(255)),
        Column("traceparent", Name(64)),
        Column("request_id", Name(), nullable=False),
        Column("created_by", Name(), nullable=False),
    )
    ddl.create_table(
        "outbox_keys",
        Column("digest", Digest, primary_key=True),
        Column("message_id", Id, nullable=False),
        Column("flow_id", Serial, nullable=False),
        Column("fingerprint", Digest, nullable=False),
        Column("created_at", Moment, nullable=False),
        Column("purge_at", Moment),
        Column("ended_at", Moment),
        Column("attempt", Count),
        Column("fence", Count),
        Column("grant_digest", Digest),
        Column("settlement_digest", Digest),
        Column("reference", Text(255)),
    )
    ddl.create_index("outbox_keys_message", "outbox_keys", ["message_id"])
    ddl.create_index("outbox_keys_purge", "outbox_keys", ["purge_at"])
    ddl.create_table(
        "outbox_lines",
        Column("digest", Digest, primary_key=True),
        Column("last_position", Moment, nullable=False),
        Column("turn", Moment, nullable=False, server_default="0"),
    )
    ddl.create_table(
        "outbox_places",
        Column("message_id", Id, primary_key=True),
        Column("digest", Digest, nullable=False),
        Column("waits", Small, nullable=False),
        Column("position", Moment, nullable=False),
    )
    ddl.create_index("outbox_places_line", "outbox_places", ["digest", "waits", "position"])
    ddl.create_table(
        "outbox_events",
        Column("message_id", Id, primary_key=True),
        Column("id", Id, primary_key=True),
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
    )
    ddl.create_table(
        "outbox_claims",
        Column("digest", Digest, primary_key=True),
        Column("sealed", Digest, nullable=False),
        Column("grant_digest", Digest, nullable=False),
        Column("message_ids", Opaque, nullable=False),
        Column("purge_at", Moment, nullable=False),
    )
    ddl.create_index("outbox_claims_purge", "outbox_claims", ["purge_at"])
    ddl.create_table(
        "outbox_reconciliations",
        Column("message_id", Id, primary_key=True),
        Column("flow_id", Serial, nullable=False),
        Column("state", Small, nullable=False),
        Column("due_at", Moment),
        Column("attempt", Count, nullable=False, server_default="0"),
        Column("fence", Count, nullable=False, server_default="0"),
        Column("opened_at", Moment, nullable=False),
        Column("lease_micros", Moment),
        Column("worker", Text(128)),
        Column("grant_digest", Digest),
        Column("settlement_digest", Digest),
        Column("job_id", Id),
    )
    ddl.create_index(
        "outbox_reconciliations_claim", "outbox_reconciliations", ["flow_id", "state", "opened_at", "message_id"]
    )
    ddl.create_index("outbox_reconciliations_due", "outbox_reconciliations", ["state", "due_at"])


def downgrade() -> None:
    ddl.drop_table("outbox_reconciliations")
    ddl.drop_table("outbox_claims")
    ddl.drop_table("outbox_events")
    ddl.drop_table("outbox_places")
    ddl.drop_table("outbox_lines")
    ddl.drop_table("outbox_keys")
    ddl.drop_table("outbox_contents")
    ddl.drop_table("outbox_messages")
    ddl.drop_table("outbox_flows")
    ddl.drop_table("outbox_destinations")
    ddl.drop_table("outbox")
