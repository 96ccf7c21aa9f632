"""Rows as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.primitives.outbox.model.records import Message
from app.primitives.outbox.model.states import Flow, State


def message_of(row: Any, names: Mapping[int, Flow]) -> Message:
    """A row of the hot table."""
    return Message(
        id=bytes(row.id),
        flow=names[row.flow_id],
        state=State(row.state),
        available_at=row.available_at,
        due_at=row.due_at,
        fence=row.fence,
        attempt=row.attempt,
        lease_losses=row.lease_losses,
        releases=row.releases,
        max_attempts=row.max_attempts,
        created_at=row.created_at,
        claimed_at=row.claimed_at,
        ended_at=row.ended_at,
        worker=row.worker,
        category=row.category,
        reference=row.reference,
    )


def told(message: Message, content: Any) -> Message:
    """The message with what stands in its contents."""
    return replace(
        message,
        message_key=bytes(content.message_key).decode(),
        schema_version=content.schema_version,
        occurred_at=content.occurred_at,
        ordering_key=None if content.ordering_key is None else bytes(content.ordering_key).decode(),
        correlation_id=content.correlation_id,
        target_reference=content.target_reference,
    )
