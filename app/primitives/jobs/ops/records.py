"""Rows of the hot table as records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.db.tx import Tx
from app.primitives.jobs.model import Flow, Job, State
from app.primitives.jobs.model.terms import UNLIMITED
from app.primitives.jobs.ops import flows


class Names(defaultdict[int, Flow]):
    """Flow names by id, looked up as needed."""

    def __init__(self, tx: Tx) -> None:
        super().__init__()
        self._tx = tx

    def __missing__(self, flow_id: int) -> Flow:
        self[flow_id] = flows.names(self._tx, [flow_id])[flow_id]
        return self[flow_id]


def job_of(row: Any, names: Mapping[int, Flow]) -> Job:
    """A row of the hot table as a record."""
    return Job(
        id=row.id,
        flow=names[row.flow_id],
        state=State(row.state),
        priority=row.priority,
        available_at=row.available_at,
        due_at=row.due_at,
        fence=row.fence,
        attempt=row.attempt,
        lease_losses=row.lease_losses,
        releases=row.releases,
        throttles=row.throttles,
        max_attempts=None if row.max_attempts == UNLIMITED else row.max_attempts,
        timeout=row.timeout_micros,
        retry_until=row.retry_until,
        created_at=row.created_at,
        claimed_at=row.claimed_at,
        ended_at=row.ended_at,
        cancel_requested_at=row.cancel_requested_at,
        worker=row.worker,
        category=row.category,
        ended_request_id=row.ended_request_id,
        marks=row.marks,
    )


def referring(job: Job, told: Any) -> Job:
    """The job with what callers find it by, which its hot row does not hold."""
    return replace(job, correlation_id=told.correlation_id, parent_operation_id=told.parent_operation_id)
