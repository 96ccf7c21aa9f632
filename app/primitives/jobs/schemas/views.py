"""Jobs as they are told: the response models of one job, a page of jobs and a job's history, and how records become one.

The models document; answers are plain values that the `*_view` functions make. No token, digest or key is in any.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from pydantic import Field

from app.clock import seconds, to_text
from app.jsontext import Moment, Read
from app.primitives.jobs.model import Event, Job, JobDetail, Kind, State, Until, Verdict, id_text

_ID = "0198c5a2-5f00-7c3e-9d6b-0b5f3a8d1e2f"
_AT = "2026-01-31T08:30:00.000000Z"
_TOLD_BY_DETAIL = frozenset({Kind.FAILED, Kind.UNKNOWN, Kind.RELEASED, Kind.ABANDONED, Kind.HANDLED})


class JobState(StrEnum):
    """The names of a job's states."""

    SCHEDULED = "scheduled"
    AVAILABLE = "available"
    BLOCKED = "blocked"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class JobRead(Read):
    """A job without its payload."""

    id: Annotated[str, Field(description="UUIDv7; sorts by the moment of the enqueue.", examples=[_ID])]
    queue: Annotated[str, Field(examples=["billing"])]
    type: Annotated[str, Field(examples=["invoice.send"])]
    schema_version: Annotated[int, Field(description="Version of the payload's shape.", examples=[1])]
    state: Annotated[JobState, Field(description="Where the job is in its life. New states may come.")]
    priority: Annotated[int, Field(description="Smaller runs first.", examples=[0])]
    attempt: Annotated[int, Field(description="Attempts so far, the running one included.", examples=[1])]
    max_attempts: Annotated[
        int | None, Field(description="Attempts after which a failure is the last one; null: no ceiling.", examples=[5])
    ]
    lease_losses: Annotated[
        int, Field(description="Attempts that were abandoned because their lease ended.", examples=[0])
    ]
    releases: Annotated[int, Field(description="Times that it was given back unworked.", examples=[0])]
    throttles: Annotated[
        int, Field(description="Times that it was given back because its target was busy.", examples=[0])
    ]
    fence: Annotated[int, Field(description="Grows with every grant of this job.", examples=[1])]
    timeout_seconds: Annotated[float, Field(description="Ceiling of one attempt, from its claim.", examples=[3600.0])]
    retry_until: Annotated[Moment | None, Field(description="No further attempt begins after this.", examples=[None])]
    available_at: Annotated[Moment, Field(description="When it may run, or could first have run.", examples=[_AT])]
    created_at: Annotated[Moment, Field(examples=[_AT])]
    claimed_at: Annotated[Moment | None, Field(description="When its newest attempt began.", examples=[_AT])]
    expires_at: Annotated[Moment | None, Field(description="When the lease ends; only while running.", examples=[_AT])]
    ended_at: Annotated[Moment | None, Field(description="When it succeeded, died or was cancelled.", examples=[None])]
    purge_at: Annotated[Moment | None, Field(description="When an ended job may be forgotten.", examples=[None])]
    cancel_requested_at: Annotated[
        Moment | None, Field(description="When the running attempt was asked to stop.", examples=[None])
    ]
    worker: Annotated[
        str | None, Field(description="Label of the worker of its newest attempt.", examples=["mailer-1"])
    ]
    category: Annotated[str | None, Field(description="Category of the last real failure.", examples=[None])]
    correlation_id: Annotated[str | None, Field(examples=["order-4711"])]
    parent_operation_id: Annotated[str | None, Field(examples=[None])]


class UniqueRead(Read):
    """The key that keeps other jobs of this type out."""

    key: Annotated[str, Field(examples=["invoice-4711"])]
    until: Annotated[
        Until, Field(description="Whether it is free once the job has been started, or once it has ended.")
    ]


class DebounceRead(Read):
    """The key under which enqueues of this type become one run."""

    key: Annotated[str, Field(examples=["reindex-17"])]
    latest_at: Annotated[Moment, Field(description="However often it is put off, it is due then.", examples=[_AT])]


class ConcurrencyRead(Read):
    """The key whose slots this job needs."""

    key: Annotated[str, Field(examples=["printer-3"])]
    limit: Annotated[
        int, Field(description="How many may hold it at once now; the newest enqueue decides.", examples=[1])
    ]


class KeyedJobRead(JobRead):
    """A job with its keys; null where it has none."""

    unique: UniqueRead | None
    debounce: DebounceRead | None
    concurrency: ConcurrencyRead | None


class JobEventRead(Read):
    """One thing that happened to a job."""

    at: Annotated[Moment, Field(examples=[_AT])]
    kind: Annotated[
        str,
        Field(
            description=f"One of: {', '.join(f'`{kind}`' for kind in Kind)}. New kinds may come.", examples=["failed"]
        ),
    ]
    attempt: Annotated[int | None, Field(description="Which attempt it belongs to.", examples=[1])]
    fence: Annotated[int | None, Field(description="The fence of that attempt's reservation.", examples=[1])]
    worker: Annotated[str | None, Field(examples=["mailer-1"])]
    category: Annotated[
        str | None, Field(description="Class of the failure, or reason of the release.", examples=["timeout"])
    ]
    message: Annotated[
        str | None, Field(description="What the worker or the operator said.", examples=["no answer in 30 s"])
    ]
    reference: Annotated[str | None, Field(description="Where to read more.", examples=["err-81f2"])]
    actor: Annotated[str | None, Field(description="Id of the API key of whoever did it.", examples=[None])]
    request_id: Annotated[str | None, Field(description="The request that did it.", examples=["8e1c02a7"])]
    state: Annotated[
        JobState | None, Field(description="The state that this attempt left the job in.", examples=["scheduled"])
    ]
    available_at: Annotated[Moment | None, Field(description="When it was to run again after this.", examples=[_AT])]
    verdict: Annotated[Verdict | None, Field(description="For `reconciled`.", examples=[None])]
    evidence: Annotated[
        Any, Field(description="For `reconciled`: any JSON value, byte for byte; null without the role operator.")
    ]
    handler_job_id: Annotated[
        str | None, Field(description="For `handled`: the job that this death enqueued.", examples=[None])
    ]
    handler_message_id: Annotated[
        str | None, Field(description="For `handled`: the message that this death recorded.", examples=[None])
    ]


class LastErrorRead(Read):
    """The last failure that a worker reported; a lease that was lost later does not hide it."""

    at: Annotated[Moment, Field(examples=[_AT])]
    attempt: Annotated[int | None, Field(examples=[1])]
    category: Annotated[str | None, Field(examples=["timeout"])]
    message: Annotated[str | None, Field(examples=["no answer in 30 s"])]
    reference: Annotated[str | None, Field(examples=["err-81f2"])]


class JobDetailRead(KeyedJobRead):
    """A job with its history. `payload` and `result` are there only if `include` asked for them."""

    last_error: LastErrorRead | None
    events: Annotated[list[JobEventRead], Field(description="Oldest first.")]
    created_by: Annotated[str, Field(description="Id of the API key that enqueued it.", examples=["k_7f3a"])]
    request_id: Annotated[str, Field(description="The request that enqueued it.", examples=["8e1c02a7"])]
    traceparent: Annotated[str | None, Field(description="W3C trace context of the enqueue.", examples=[None])]
    progress: Annotated[Any, Field(description="The worker's last progress, any JSON value; null if it sent none.")]
    payload: Annotated[Any, Field(description="With `include=payload`: byte for byte as enqueued.")] = None
    result: Annotated[
        Any, Field(description="With `include=result`: byte for byte, absent if the worker sent none.")
    ] = None


class JobChangedRead(JobRead):
    """A job after an operator's action."""

    replayed: Annotated[
        bool, Field(description="The same action had been done before; nothing was changed now.", examples=[False])
    ]


class JobListRead(Read):
    """A page of jobs, newest first."""

    items: list[KeyedJobRead]
    next_cursor: Annotated[
        str | None, Field(description="Pass it on as `cursor`; null on the last page.", examples=[None])
    ]


def moment_view(moment: int | None) -> str | None:
    return None if moment is None else to_text(moment)


def job_view(job: Job) -> dict[str, Any]:
    """The plain values of a `JobRead`."""
    queue, type_, version = job.flow
    ended = job.ended_at is not None
    return {
        "id": id_text(job.id),
        "queue": queue,
        "type": type_,
        "schema_version": version,
        "state": job.state.text,
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "lease_losses": job.lease_losses,
        "releases": job.releases,
        "throttles": job.throttles,
        "fence": job.fence,
        "timeout_seconds": seconds(job.timeout),
        "retry_until": moment_view(job.retry_until),
        "available_at": to_text(job.available_at),
        "created_at": to_text(job.created_at),
        "claimed_at": moment_view(job.claimed_at),
        "expires_at": moment_view(job.due_at if job.state is State.RUNNING else None),
        "ended_at": moment_view(job.ended_at),
        "purge_at": moment_view(job.due_at if ended else None),
        "cancel_requested_at": moment_view(job.cancel_requested_at),
        "worker": job.worker,
        "category": job.category,
        "correlation_id": job.correlation_id,
        "parent_operation_id": job.parent_operation_id,
    }


def keyed_view(job: Job) -> dict[str, Any]:
    """The plain values of a `KeyedJobRead`."""
    unique, debounce, concurrency = job.keys.unique, job.keys.debounce, job.keys.concurrency
    return {
        **job_view(job),
        "unique": None if unique is None else {"key": unique[0], "until": unique[1].value},
        "debounce": None if debounce is None else {"key": debounce[0], "latest_at": to_text(debounce[1])},
        "concurrency": None if concurrency is None else {"key": concurrency[0], "limit": concurrency[1]},
    }


def detail_view(detail: JobDetail, *, evidence: bool) -> dict[str, Any]:
    """The plain values of a `JobDetailRead`; `evidence` says whether the caller may see it."""
    view = keyed_view(detail.job)
    view["last_error"] = _last_error(detail.events)
    view["events"] = [_event_view(event, evidence=evidence) for event in detail.events]
    view |= {"created_by": detail.created_by, "request_id": detail.request_id, "traceparent": detail.traceparent}
    view["progress"] = _raw(detail.progress)
    view |= {name: _raw(value) for name in ("payload", "result") if (value := getattr(detail, name)) is not None}
    return view


def _event_view(event: Event, *, evidence: bool) -> dict[str, Any]:
    left = json.loads(event.detail) if event.detail is not None and event.kind in _TOLD_BY_DETAIL else {}
    verdict = event.kind == Kind.RECONCILED
    return {
        "at": to_text(event.at),
        "kind": event.kind,
        "attempt": event.attempt,
        "fence": event.fence,
        "worker": event.worker,
        "category": None if verdict else event.category,
        "message": event.message,
        "reference": event.reference,
        "actor": event.actor,
        "request_id": event.request_id,
        "state": left.get("state"),
        "available_at": moment_view(left.get("available_at")),
        "verdict": event.category if verdict else None,
        "evidence": _raw(event.detail if verdict and evidence else None),
        "handler_job_id": left.get("handler_job_id"),
        "handler_message_id": left.get("handler_message_id"),
    }


def _last_error(events: tuple[Event, ...]) -> dict[str, Any] | None:
    for event in reversed(events):
        if event.kind in (Kind.FAILED, Kind.UNKNOWN):
            return {
                "at": to_text(event.at),
                "attempt": event.attempt,
                "category": event.category,
                "message": event.message,
                "reference": event.reference,
            }
    return None


def _raw(value: bytes | None) -> msgspec.Raw | None:
    return None if value is None else msgspec.Raw(value)
