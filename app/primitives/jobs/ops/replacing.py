"""What an enqueue leaves in the tables: as a new job's rows, or in the place of what a waiting job was enqueued with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.db.tx import Tx
from app.errors import OVERLOADED, Refusal
from app.primitives.jobs.model import Caller, Flow, Job, Kind, NewJob, new_id
from app.primitives.jobs.model.terms import UNLIMITED
from app.primitives.jobs.store import uniques as store
from app.primitives.jobs.store import work

CORRELATION, PARENT = 1, 2


@dataclass(frozen=True, slots=True)
class Made:
    """A job, and the enqueue that its contents are from. `job.id` is an older one's if it was replaced."""

    caller: Caller
    new: NewJob
    job: Job


def hot(job: Job, flow_ids: Mapping[Flow, int]) -> dict[str, Any]:
    return {
        "id": job.id,
        "flow_id": flow_ids[job.flow],
        "state": int(job.state),
        "priority": job.priority,
        "available_at": job.available_at,
        "due_at": job.due_at,
        "marks": job.marks,
        "max_attempts": UNLIMITED if job.max_attempts is None else job.max_attempts,
        "timeout_micros": job.timeout,
        "retry_until": job.retry_until,
        "lease_micros": job.lease,
        "created_at": job.created_at,
    }


def content(made: Made) -> dict[str, Any]:
    return {
        "job_id": made.job.id,
        "payload": made.new.payload,
        "correlation_id": made.new.correlation_id,
        "parent_operation_id": made.new.parent_operation_id,
        "traceparent": made.caller.traceparent,
        "tracestate": made.caller.tracestate,
        "request_id": made.caller.request_id,
        "created_by": made.caller.principal.key_id,
    }


def references(made: Made) -> list[dict[str, Any]]:
    named = ((CORRELATION, made.new.correlation_id), (PARENT, made.new.parent_operation_id))
    return [
        {"kind": kind, "digest": reference(text), "job_id": made.job.id} for kind, text in named if text is not None
    ]


def reference(text: str) -> bytes:
    """What a correlation or parent id is found by."""
    return hashlib.sha256(text.encode()).digest()


def event(tx: Tx, made: Made) -> dict[str, Any]:
    """Who replaced what this job was enqueued with. A debounced job writes none: there may be thousands."""
    nothing = (
        "claimed_at",
        "worker",
        "category",
        "message",
        "reference",
        "grant_digest",
        "settlement_digest",
        "detail",
    )
    return {
        **dict.fromkeys(nothing),
        "job_id": made.job.id,
        "id": new_id(),
        "at": tx.now,
        "kind": Kind.REPLACED.value,
        "attempt": made.job.attempt,
        "fence": made.job.fence,
        "actor": made.caller.principal.key_id,
        "request_id": made.caller.request_id,
    }


def write(tx: Tx, replaced: Sequence[Made], flow_ids: Mapping[Flow, int]) -> None:
    """Write newer contents into jobs whose rows are locked, which wait and were never started.

    Race: a server that does not hold its locks let a claim in between: then nothing is written at all.
    """
    ordered = sorted(replaced, key=lambda made: made.job.id)
    rows = [{f"b_{name}": value for name, value in hot(made.job, flow_ids).items()} for made in ordered]
    rows = [{name: value for name, value in row.items() if name != "b_created_at"} for row in rows]
    if store.update_replaced(tx, rows) != len(rows):
        raise Refusal(
            OVERLOADED, "Another call changed the same job at this moment; nothing was done.", retry_after_seconds=1
        )
    store.update_contents(tx, [content(made) for made in ordered])
    store.delete_refs(tx, [made.job.id for made in ordered])
    if found := [row for made in ordered for row in references(made)]:
        work.insert_refs(tx, found)
