"""Tables of the locks. Indexes are named by the query that they serve."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table

from app.db.held import held_columns
from app.db.metadata import TABLE_OPTIONS, Digest, Id, Key, Moment, Small, metadata, named
from app.db.metadata import Text as Words

DUE_INDEX = named("locks_due")
LINE_INDEX = named("lock_waiters_line")
WAITERS_DUE_INDEX = named("lock_waiters_due")

locks = Table(
    named("locks"),
    metadata,
    Column("digest", Digest, primary_key=True),  # of the name
    Column("name", Key, nullable=False),
    Column("state", Small, nullable=False),
    Column("due_at", Moment, nullable=False),  # held: when the lease ends; free: when the row may be purged
    Column("owner", Words(128)),  # of the newest reservation
    Column("acquired_at", Moment),
    Column("awaited_until", Moment, nullable=False, server_default="0"),  # nobody waits for it past this
    *held_columns(),
    Index(DUE_INDEX, "state", "due_at", "digest"),
    **TABLE_OPTIONS,
)

# a place in the line of a name; it counts while its process is heard of
lock_waiters = Table(
    named("lock_waiters"),
    metadata,
    Column("id", Digest, primary_key=True),
    Column("digest", Digest, nullable=False),
    Column("position", Moment, nullable=False),
    Column("number", Moment, nullable=False),  # among those of one process that came in the same moment
    Column("until", Moment, nullable=False),
    Column("process", Id, nullable=False),
    Index(LINE_INDEX, "digest", "position", "number"),
    Index(WAITERS_DUE_INDEX, "until"),
    **TABLE_OPTIONS,
)

# a process in which callers wait
lock_processes = Table(
    named("lock_processes"),
    metadata,
    Column("id", Id, primary_key=True),
    Column("alive_until", Moment, nullable=False),
    **TABLE_OPTIONS,
)
