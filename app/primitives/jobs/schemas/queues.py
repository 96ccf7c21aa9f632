"""Queues and statistics: what is sent, what is answered, and how records become answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from app.clock import seconds, to_text
from app.http.paging import PageRead
from app.jsontext import Body, Moment, Note, Read, Reason
from app.primitives.jobs.model import Figure, QueueView, State
from app.primitives.jobs.ops.stats import FlowFigures, Report
from app.primitives.jobs.schemas.views import moment_view

MILLION = 1_000_000
_AT = "2026-01-31T08:30:00.000000Z"


class PutQueue(Body):
    """All that can be set of a queue. What is left out is unset; a pause is not touched."""

    max_depth: Annotated[int, Field(ge=0, le=2_147_483_647)] | None = Field(
        None,
        description="So many jobs may wait (scheduled or available); more are refused with 429.",
        examples=[10_000],
    )
    retention_seconds: Annotated[int, Field(ge=0, le=315_360_000)] | None = Field(
        None, description="How long its ended jobs are kept; null: as the service is set up.", examples=[86_400]
    )
    description: Annotated[Note, Field(max_length=1000)] = Field("", description="For people.", examples=["Invoices"])
    contract_policy: Literal["allow", "warn", "refuse"] | None = Field(
        None,
        description="What becomes of new jobs whose type has no valid contract; null: as the service is set up.",
        examples=["warn"],
    )


class PauseQueue(Body):
    """Why it is paused."""

    reason: Reason = Field(description="Kept with the queue and in the audit.", examples=["the provider is down"])


class ResumeQueue(Body):
    """Why it goes on."""

    reason: Reason = Field(description="Kept in the audit.", examples=["the provider is back"])


class StateCounts(Read):
    """How many jobs are in each state."""

    scheduled: int = Field(examples=[0])
    available: int = Field(examples=[3])
    blocked: int = Field(description="They wait for a slot of their concurrency key.", examples=[0])
    running: int = Field(examples=[1])
    succeeded: int = Field(examples=[120])
    dead: int = Field(examples=[0])
    cancelled: int = Field(examples=[0])
    unknown: int = Field(examples=[0])


class QueueRead(Read):
    """A queue with its counts."""

    name: str = Field(examples=["billing"])
    paused: bool = Field(description="While true, claims take nothing from it.", examples=[False])
    paused_at: Moment | None = Field(examples=[None])
    paused_reason: str | None = Field(examples=[None])
    max_depth: int | None = Field(description="So many jobs may wait; null: any number.", examples=[10_000])
    retention_seconds: int | None = Field(
        description="How long its ended jobs are kept; null: as the service is set up.", examples=[None]
    )
    description: str = Field(examples=["Invoices"])
    contract_policy: Literal["allow", "warn", "refuse"] | None = Field(
        description="What becomes of new jobs whose type has no valid contract; null: as the service is set up.",
        examples=[None],
    )
    created_at: Moment = Field(examples=[_AT])
    updated_at: Moment = Field(examples=[_AT])
    counts: StateCounts


class QueueChangedRead(QueueRead):
    """A queue after it was paused or resumed."""

    replayed: bool = Field(description="True if it was so before; nothing was changed now.", examples=[False])


class QueueListRead(PageRead):
    """A page of queues, by name."""

    items: list[QueueRead]


class FiguresRead(Read):
    """Figures of some jobs. Those of the last hour miss what other replicas have seen in the last few seconds."""

    counts: StateCounts
    oldest_available_seconds: float | None = Field(
        description="How long the longest waiting job has been available; null if none is.", examples=[1.5]
    )
    attempts: int = Field(description="Claims in the last hour.", examples=[121])
    succeeded: int = Field(description="Throughput: jobs that succeeded in the last hour.", examples=[120])
    failed: int = Field(description="Attempts that failed in the last hour.", examples=[1])
    retried: int = Field(description="Attempts of the last hour after which the job was to run again.", examples=[1])
    dead: int = Field(description="Jobs that died in the last hour.", examples=[0])
    abandoned: int = Field(description="Attempts whose lease ended in the last hour.", examples=[0])
    retry_rate_ppm: int = Field(description="`retried` for a million `attempts`.", examples=[8264])
    mean_duration_seconds: float | None = Field(
        description="Of the successful attempts of the last hour; null if there were none.", examples=[0.42]
    )
    p95_duration_seconds: float | None = Field(
        description="95 of 100 successful attempts were not longer; within an eighth.", examples=[0.9]
    )


class TypeFiguresRead(FiguresRead):
    """Figures of one type and version in one queue."""

    type: str = Field(examples=["invoice.send"])
    schema_version: int = Field(examples=[1])


class QueueFiguresRead(FiguresRead):
    """Figures of one queue, and of each of its types."""

    queue: str = Field(examples=["billing"])
    paused_at: Moment | None = Field(examples=[None])
    types: list[TypeFiguresRead]


class WorkerRead(Read):
    """A worker in one of its queues."""

    worker: str = Field(examples=["mailer-1"])
    queue: str = Field(examples=["billing"])
    last_claimed_at: Moment | None = Field(
        description="When it last asked for work, also if it got none.", examples=[_AT]
    )
    last_beat_at: Moment | None = Field(description="When it last sent a heartbeat.", examples=[_AT])
    state: str = Field(
        description="`active`; `silent`: it beats but does not claim though there is work for it; `gone`: neither.",
        examples=["active"],
    )


class StatsRead(Read):
    """Figures of all jobs at one moment."""

    at: Moment = Field(description="When they were taken.", examples=[_AT])
    queues: list[QueueFiguresRead]
    workers: list[WorkerRead] = Field(description="Those seen within a day.")


def counts_view(counts: dict[str, int]) -> dict[str, int]:
    return {name: counts.get(name, 0) for name in StateCounts.model_fields}


def queue_view(queue: QueueView) -> dict[str, Any]:
    """The plain values of a `QueueRead`."""
    return {
        "name": queue.name,
        "paused": queue.paused_at is not None,
        "paused_at": moment_view(queue.paused_at),
        "paused_reason": queue.paused_reason,
        "max_depth": queue.max_depth,
        "retention_seconds": queue.retention_seconds,
        "description": queue.description,
        "contract_policy": queue.contract_policy,
        "created_at": to_text(queue.created_at),
        "updated_at": to_text(queue.updated_at),
        "counts": counts_view(queue.counts),
    }


def stats_view(report: Report, queues: list[str]) -> dict[str, Any]:
    """The plain values of a `StatsRead`, of these queues."""
    shown = set(queues)
    return {
        "at": to_text(report.at),
        "queues": [_queue_figures(report, queue) for queue in queues],
        "workers": [
            {
                "worker": one.worker,
                "queue": one.queue,
                "last_claimed_at": moment_view(one.last_claimed_at),
                "last_beat_at": moment_view(one.last_beat_at),
                "state": one.state,
            }
            for one in report.workers
            if one.queue in shown
        ],
    }


def _queue_figures(report: Report, queue: str) -> dict[str, Any]:
    types = [
        {"type": type_, "schema_version": version, **_figures(report.at, figures)}
        for (name, type_, version), figures in sorted(report.flows.items())
        if name == queue
    ]
    paused_at = moment_view(report.paused_at[queue])
    return {"queue": queue, "paused_at": paused_at, **_figures(report.at, report.of_queue(queue)), "types": types}


def _figures(now: int, figures: FlowFigures) -> dict[str, Any]:
    sums, mean, p95 = figures.sums, figures.mean_duration(), figures.p95_duration()
    attempts = sums[Figure.CLAIMED]
    return {
        "counts": counts_view({state.text: figures.counts[state] for state in State}),
        "oldest_available_seconds": None if figures.oldest is None else max(0.0, seconds(now - figures.oldest)),
        "attempts": attempts,
        "succeeded": sums[Figure.SUCCEEDED],
        "failed": sums[Figure.FAILED],
        "retried": sums[Figure.RETRIED],
        "dead": sums[Figure.DEAD],
        "abandoned": sums[Figure.ABANDONED],
        "retry_rate_ppm": sums[Figure.RETRIED] * MILLION // attempts if attempts else 0,
        "mean_duration_seconds": None if mean is None else round(mean / MILLION, 6),
        "p95_duration_seconds": None if p95 is None else seconds(p95),
    }
