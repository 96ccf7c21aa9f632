"""Tables of the outbox. Indexes are named by the query that they serve.

`outbox` is for producers: they INSERT into it with plain SQL, and its defaults do the rest. `outbox_messages` is the hot row
that everything else works on. `due_at` means "when the service itself must look at this row next".
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table, UniqueConstraint

from app.db.metadata import (
    TABLE_OPTIONS,
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
    Whole,
    metadata,
    named,
)
from app.db.metadata import Text as Words

CLAIM_INDEX = named("outbox_messages_claim")
DUE_INDEX = named("outbox_messages_due")
LINE_INDEX = named("outbox_places_line")
INTAKE_INDEX = named("outbox_state")
RECONCILE_INDEX = named("outbox_reconciliations_claim")
RECONCILE_DUE_INDEX = named("outbox_reconciliations_due")


# what a producer writes: wider than what is allowed, so that a server that cuts in silence cannot cut it to what is
Written = Words(512)

# what producers INSERT with plain SQL; a row leaves once it is adopted
outbox = Table(
    named("outbox"),
    metadata,
    Column("id", Counter, primary_key=True, autoincrement=True),
    Column("message_key", Written, nullable=False),
    Column("type", Written, nullable=False),
    Column("destination", Written, nullable=False),
    Column("payload", Whole, nullable=False),
    Column("schema_version", BigInteger, nullable=False, server_default="1"),
    Column("occurred_at", BigInteger),
    Column("available_at", BigInteger),
    Column("ordering_key", Written),
    Column("correlation_id", Written),
    Column("target_reference", Written),
    Column("max_attempts", BigInteger),
    Column("state", Name(16), nullable=False, server_default="pending"),
    Column("reason", Words(500)),
    Column("recorded_at", BigInteger, nullable=False, server_default=Now()),
    Index(INTAKE_INDEX, "state", "id"),
    sqlite_autoincrement=True,
    **TABLE_OPTIONS,
)

outbox_destinations = Table(
    named("outbox_destinations"),
    metadata,
    Column("name", Name(), primary_key=True),
    Column("config", Opaque, nullable=False),
    Column("sealed", Opaque),  # signing secrets, encrypted
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    **TABLE_OPTIONS,
)

# a flow is a (destination, type): what a claim may take or not take as a whole
outbox_flows = Table(
    named("outbox_flows"),
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("destination", Name(), nullable=False),
    Column("type", Name(), nullable=False),
    UniqueConstraint("destination", "type", name=named("outbox_flows_name")),
    **TABLE_OPTIONS,
)

outbox_messages = Table(
    named("outbox_messages"),
    metadata,
    Column("id", Id, primary_key=True),
    Column("flow_id", Serial, nullable=False),
    Column("state", Small, nullable=False),
    Column("available_at", Moment, nullable=False),
    Column("due_at", Moment),
    Column("fence", Count, nullable=False, server_default="0"),
    Column("attempt", Count, nullable=False, server_default="0"),
    Column("lease_losses", Count, nullable=False, server_default="0"),
    Column("releases", Count, nullable=False, server_default="0"),
    Column("max_attempts", Count),  # None: as its destination says at the time
    Column("lease_micros", Moment),
    Column("created_at", Moment, nullable=False),
    Column("claimed_at", Moment),
    Column("ended_at", Moment),
    Column("worker", Words(128)),
    Column("category", Name()),  # of the last real failure
    Column("reference", Words(255)),  # what the destination knows the effect by
    Column("grant_digest", Digest),  # of the newest reservation; stays after its end, for replays
    Column("settlement_digest", Digest),
    Column("ended_request_id", Name()),
    Column("ordered", Small, nullable=False, server_default="0"),  # it has a row in `outbox_places`
    Index(CLAIM_INDEX, "flow_id", "state", "available_at", "id"),
    Index(DUE_INDEX, "state", "due_at", "id"),
    **TABLE_OPTIONS,
)

outbox_contents = Table(
    named("outbox_contents"),
    metadata,
    Column("message_id", Id, primary_key=True),
    Column("message_key", Key, nullable=False),
    Column("schema_version", Count, nullable=False),
    Column("payload", Opaque, nullable=False),
    Column("occurred_at", Moment, nullable=False),
    Column("ordering_key", Key),
    Column("correlation_id", Words(255)),
    Column("target_reference", Words(255)),
    Column("traceparent", Name(64)),
    Column("request_id", Name(), nullable=False),
    Column("created_by", Name(), nullable=False),
    **TABLE_OPTIONS,
)

# a message key lives as long as its message; where sent messages are deleted at once, it is what is left of them
outbox_keys = Table(
    named("outbox_keys"),
    metadata,
    Column("digest", Digest, primary_key=True),
    Column("message_id", Id, nullable=False),
    Column("flow_id", Serial, nullable=False),
    Column("fingerprint", Digest, nullable=False),
    Column("created_at", Moment, nullable=False),
    # of a message that is gone: until when the key is kept, and how it was settled, for replays
    Column("purge_at", Moment),
    Column("ended_at", Moment),
    Column("attempt", Count),
    Column("fence", Count),
    Column("grant_digest", Digest),
    Column("settlement_digest", Digest),
    Column("reference", Words(255)),
    Index(named("outbox_keys_message"), "message_id"),
    Index(named("outbox_keys_purge"), "purge_at"),
    **TABLE_OPTIONS,
)

# an ordering key of a destination: the row that is locked by whoever changes what stands in its line
outbox_lines = Table(
    named("outbox_lines"),
    metadata,
    Column("digest", Digest, primary_key=True),
    Column("last_position", Moment, nullable=False),
    Column("turn", Moment, nullable=False, server_default="0"),  # written where other nodes do not see a lock
    **TABLE_OPTIONS,
)

# a message's place in its line; `waits` while the message is neither sent nor dead
outbox_places = Table(
    named("outbox_places"),
    metadata,
    Column("message_id", Id, primary_key=True),
    Column("digest", Digest, nullable=False),
    Column("waits", Small, nullable=False),
    Column("position", Moment, nullable=False),
    Index(LINE_INDEX, "digest", "waits", "position"),
    **TABLE_OPTIONS,
)

# what happened to a message besides being recorded, claimed and sent, which its own row tells
outbox_events = Table(
    named("outbox_events"),
    metadata,
    Column("message_id", Id, primary_key=True),
    Column("id", Id, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("kind", Name(32), nullable=False),
    Column("attempt", Count),
    Column("fence", Count),
    Column("claimed_at", Moment),
    Column("worker", Words(128)),
    Column("category", Name()),
    Column("message", Words(2000)),
    Column("reference", Words(255)),
    Column("actor", Name()),
    Column("request_id", Name()),
    Column("grant_digest", Digest),
    Column("settlement_digest", Digest),
    Column("detail", Opaque),
    **TABLE_OPTIONS,
)

# grants that a caller may ask for again by its claim id
outbox_claims = Table(
    named("outbox_claims"),
    metadata,
    Column("digest", Digest, primary_key=True),
    Column("sealed", Digest, nullable=False),
    Column("grant_digest", Digest, nullable=False),
    Column("message_ids", Opaque, nullable=False),
    Column("purge_at", Moment, nullable=False),
    Index(named("outbox_claims_purge"), "purge_at"),
    **TABLE_OPTIONS,
)

# a message whose outcome is unknown, and who is finding out; a row goes with the verdict
outbox_reconciliations = Table(
    named("outbox_reconciliations"),
    metadata,
    Column("message_id", Id, primary_key=True),
    Column("flow_id", Serial, nullable=False),
    Column("state", Small, nullable=False),  # a `Doubt`
    Column("due_at", Moment),  # when it may be looked at again, or its reservation ends
    Column("attempt", Count, nullable=False, server_default="0"),
    Column("fence", Count, nullable=False, server_default="0"),
    Column("opened_at", Moment, nullable=False),
    Column("lease_micros", Moment),
    Column("worker", Words(128)),
    Column("grant_digest", Digest),
    Column("settlement_digest", Digest),
    Column("job_id", Id),  # that was enqueued to find out
    Index(RECONCILE_INDEX, "flow_id", "state", "opened_at", "message_id"),
    Index(RECONCILE_DUE_INDEX, "state", "due_at"),
    **TABLE_OPTIONS,
)

# a prepared message that nobody has decided yet, and what asking its producer has brought; a row goes with the decision
outbox_checks = Table(
    named("outbox_checks"),
    metadata,
    Column("message_id", Id, primary_key=True),
    Column("flow_id", Serial, nullable=False),
    Column("state", Small, nullable=False),  # a `Check`
    Column("decide_at", Moment, nullable=False),
    Column("url", Opaque),
    Column("asked", Count, nullable=False, server_default="0"),  # how often an answer came that decided nothing
    Column("failures", Count, nullable=False, server_default="0"),  # the same, and calls that reached nobody
    Column("answer", Words(500)),
    Column("answered_at", Moment),
    Index(named("outbox_checks_state"), "state", "flow_id"),
    **TABLE_OPTIONS,
)
