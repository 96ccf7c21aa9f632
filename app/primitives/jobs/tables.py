"""Tables of the jobs. Indexes are named by the query that they serve.

`jobs` is the hot row: at most two secondary indexes, no payload, no foreign key. `due_at` means "when the service itself
must look at this row next": the run time if scheduled, the lease end if running, the purge time if ended.
"""

from __future__ import annotations

from sqlalchemy import Column, Index, PrimaryKeyConstraint, Table, UniqueConstraint

from app.db.metadata import (
    TABLE_OPTIONS,
    Count,
    Digest,
    Id,
    Key,
    Moment,
    Name,
    Opaque,
    Serial,
    Small,
    Text,
    metadata,
    named,
)

CLAIM_INDEX = named("jobs_claim")
DUE_INDEX = named("jobs_due")
LINE_INDEX = named("job_slots_line")

queues = Table(
    named("queues"),
    metadata,
    Column("name", Name(), primary_key=True),
    Column("paused_at", Moment),
    Column("paused_reason", Text(500)),
    Column("max_depth", Count),
    Column("retention_seconds", Moment),
    Column("description", Text(1000), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("contract_policy", Name(16)),  # None: by the settings
    **TABLE_OPTIONS,
)

# a flow is a (queue, type, schema_version): what a claim may take or not take as a whole
flows = Table(
    named("flows"),
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("queue", Name(), nullable=False),
    Column("type", Name(), nullable=False),
    Column("schema_version", Count, nullable=False),
    UniqueConstraint("queue", "type", "schema_version", name=named("flows_name")),
    **TABLE_OPTIONS,
)

jobs = Table(
    named("jobs"),
    metadata,
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
    # while it runs: what its claim got, by which a heartbeat that names none extends. Else: what its contract says, for a
    # claim that names none
    Column("lease_micros", Moment),
    Column("retry_until", Moment),
    Column("created_at", Moment, nullable=False),
    Column("claimed_at", Moment),
    Column("ended_at", Moment),
    Column("cancel_requested_at", Moment),
    Column("worker", Text(128)),
    Column("category", Name()),  # of the last real failure
    Column("ended_request_id", Name()),
    Column("grant_digest", Digest),  # of the newest reservation; stays after its end, for replays
    Column("settlement_digest", Digest),  # of what that reservation was settled with
    Column("marks", Small, nullable=False, server_default="0"),  # `Mark`s: which of the tables below know this job
    Index(CLAIM_INDEX, "flow_id", "state", "priority", "available_at", "id"),
    Index(DUE_INDEX, "state", "due_at", "id"),
    **TABLE_OPTIONS,
)

job_contents = Table(
    named("job_contents"),
    metadata,
    Column("job_id", Id, primary_key=True),
    Column("payload", Opaque, nullable=False),
    Column("correlation_id", Text(255)),
    Column("parent_operation_id", Text(255)),
    Column("traceparent", Name(64)),
    Column("tracestate", Name(512)),
    Column("request_id", Name(), nullable=False),
    Column("created_by", Name(), nullable=False),
    **TABLE_OPTIONS,
)

job_results = Table(
    named("job_results"),
    metadata,
    Column("job_id", Id, primary_key=True),
    Column("result", Opaque, nullable=False),
    **TABLE_OPTIONS,
)

job_progress = Table(
    named("job_progress"),
    metadata,
    Column("job_id", Id, primary_key=True),
    Column("progress", Opaque, nullable=False),
    Column("updated_at", Moment, nullable=False),
    **TABLE_OPTIONS,
)

# an idempotency key lives as long as its job
job_keys = Table(
    named("job_keys"),
    metadata,
    Column("digest", Digest, primary_key=True),
    Column("job_id", Id, nullable=False),
    Column("fingerprint", Digest, nullable=False),
    # the key's call was given a job that was there before, under its unique or debounce key
    Column("deduplicated", Small, nullable=False, server_default="0"),
    Index(named("job_keys_job"), "job_id"),
    **TABLE_OPTIONS,
)

# a job's unique or debounce key. `holding` is the digest while it keeps others out, else NULL; so the unique index decides
job_uniques = Table(
    named("job_uniques"),
    metadata,
    Column("job_id", Id, primary_key=True),
    Column("digest", Digest, nullable=False),
    Column("holding", Digest),
    Column("name", Key, nullable=False),
    Column("latest_at", Moment),  # of a debounce: however often it is put off, it is due then
    Column("newest", Id, nullable=False),  # the enqueue that its contents are from
    UniqueConstraint("holding", name=named("job_uniques_holding")),
    **TABLE_OPTIONS,
)

# a concurrency key and its limit: the row that is locked by whoever changes what stands in its line
job_limits = Table(
    named("job_limits"),
    metadata,
    Column("digest", Digest, primary_key=True),
    Column("name", Key, nullable=False),
    Column("most", Count, nullable=False),
    Column("last_position", Moment, nullable=False),
    Column("turn", Moment, nullable=False, server_default="0"),  # written where other nodes do not see a lock
    **TABLE_OPTIONS,
)

# a job's place at its concurrency key. What holds a slot is derived from this and the job's own live row, never counted
job_slots = Table(
    named("job_slots"),
    metadata,
    Column("job_id", Id, primary_key=True),
    Column("digest", Digest, nullable=False),
    Column("place", Small, nullable=False),
    Column("priority", Small, nullable=False),
    Column("position", Moment, nullable=False),
    Index(LINE_INDEX, "digest", "place", "priority", "position"),
    **TABLE_OPTIONS,
)

# what a contract promises of a job type, as far as it decides what becomes of a job; None: by the settings
job_terms = Table(
    named("job_terms"),
    metadata,
    Column("type", Name(), nullable=False),
    Column("schema_version", Count, nullable=False),
    Column("revision", Digest, nullable=False),  # of all that follows: who has seen it need not read it again
    Column("terms", Opaque, nullable=False),
    Column("updated_at", Moment, nullable=False),
    PrimaryKeyConstraint("type", "schema_version"),
    **TABLE_OPTIONS,
)

# finds jobs by correlation or parent; jobs that have neither pay nothing
job_refs = Table(
    named("job_refs"),
    metadata,
    Column("kind", Small, nullable=False),
    Column("digest", Digest, nullable=False),
    Column("job_id", Id, nullable=False),
    PrimaryKeyConstraint("kind", "digest", "job_id"),
    Index(named("job_refs_job"), "job_id"),
    **TABLE_OPTIONS,
)

# what happened to a job besides being enqueued, claimed and completed, which its own row tells
job_events = Table(
    named("job_events"),
    metadata,
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
    **TABLE_OPTIONS,
)

# grants that a caller may ask for again by its claim id
job_claims = Table(
    named("job_claims"),
    metadata,
    Column("digest", Digest, primary_key=True),
    Column("sealed", Digest, nullable=False),
    Column("grant_digest", Digest, nullable=False),
    Column("job_ids", Opaque, nullable=False),
    Column("purge_at", Moment, nullable=False),
    Index(named("job_claims_purge"), "purge_at"),
    **TABLE_OPTIONS,
)

# sums of what each process has seen, for statistics; never read by a decision
job_figures = Table(
    named("job_figures"),
    metadata,
    Column("flow_id", Serial, nullable=False),
    Column("minute", Moment, nullable=False),
    Column("figure", Small, nullable=False),
    Column("amount", Moment, nullable=False),
    PrimaryKeyConstraint("flow_id", "minute", "figure"),
    Index(named("job_figures_minute"), "minute"),
    **TABLE_OPTIONS,
)

# who has claimed or beaten lately, for people; gives no authority
job_workers = Table(
    named("job_workers"),
    metadata,
    Column("digest", Digest, primary_key=True),
    Column("worker", Text(128), nullable=False),
    Column("queue", Name(), nullable=False),
    Column("handlers", Opaque, nullable=False),
    Column("last_claimed_at", Moment),
    Column("last_beat_at", Moment),
    Column("seen_at", Moment, nullable=False),
    Index(named("job_workers_seen"), "seen_at"),
    **TABLE_OPTIONS,
)
