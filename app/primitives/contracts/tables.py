"""The table of contracts."""

from __future__ import annotations

from sqlalchemy import Column, PrimaryKeyConstraint, Table

from app.db.metadata import TABLE_OPTIONS, Count, Digest, Id, Moment, Name, Opaque, metadata, named

contracts = Table(
    named("contracts"),
    metadata,
    Column("type", Name(), nullable=False),
    Column("schema_version", Count, nullable=False),
    Column("document", Opaque, nullable=False),  # as it was registered
    Column("digest", Digest, nullable=False),  # SHA-256 of the document
    Column("put_id", Id, nullable=False),  # of the last command that changed it, made before its first try
    Column("created_at", Moment, nullable=False),
    Column("created_by", Name(64), nullable=False),  # an API key's id, or `anonymous`
    Column("updated_at", Moment, nullable=False),
    Column("updated_by", Name(64), nullable=False),
    PrimaryKeyConstraint("type", "schema_version"),
    **TABLE_OPTIONS,
)
