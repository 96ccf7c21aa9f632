"""The table of audit entries."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table

from app.db.metadata import TABLE_OPTIONS, Id, Moment, Name, Opaque, Text, metadata, named

audit = Table(
    named("audit"),
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("actor", Name(64), nullable=False),  # an API key's id, or `anonymous`
    Column("actor_name", Text(200), nullable=False),
    Column("action", Name(64), nullable=False),
    Column("kind", Name(64), nullable=False),  # of the thing that was acted on
    Column("target", Text(300), nullable=False),  # its id or name
    Column("reason", Text(500)),
    Column("request_id", Name(128)),
    Column("details", Opaque, nullable=False),  # a JSON object; never a secret, never a payload
    Index(named("audit_target"), "kind", "target", "id"),
    **TABLE_OPTIONS,
)
