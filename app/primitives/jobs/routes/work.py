"""Routes of producers and workers: enqueue, claim, heartbeat, settle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from app.access import Role
from app.clock import seconds, to_text
from app.errors import (
    IDEMPOTENCY_CONFLICT,
    NOT_FOUND,
    PAYLOAD_TOO_LARGE,
    QUEUE_FULL,
    RESERVATION_LOST,
    SETTLEMENT_CONFLICT,
    UNAUTHENTICATED,
    FieldError,
    Refusal,
)
from app.http.call import Answer, Call
from app.http.problem import problem_of
from app.http.routing import thin_router
from app.jsontext import IdText
from app.primitives.jobs.model import Claimed, Enqueue, Enqueued, Renew, Renewed, Settle, Settled, Settlement, id_text
from app.primitives.jobs.routes import commands
from app.primitives.jobs.schemas.held import (
    CompleteJob,
    FailJob,
    Heartbeat,
    HeartbeatBatch,
    HeartbeatJob,
    HeartbeatResults,
    ReleaseJob,
    SettleBatch,
    SettledJob,
    SettleResults,
    UnknownJob,
)
from app.primitives.jobs.schemas.views import job_view
from app.primitives.jobs.schemas.work import (
    ClaimedJobs,
    ClaimJobs,
    EnqueueBatch,
    EnqueuedJob,
    EnqueueJob,
    EnqueueResults,
)

router = thin_router("/v1/jobs", tags=["jobs"])

MOST_PROGRESS_BYTES = 4096
LOST = (NOT_FOUND, RESERVATION_LOST, SETTLEMENT_CONFLICT)
JOB = {"job_id": IdText}


# -- producers -------------------------------------------------------------------------------------------------------------


@router.post(
    "",
    name="enqueue_job",
    status_code=201,
    requires=Role.PRODUCER,
    answers=EnqueuedJob,
    refuses=(IDEMPOTENCY_CONFLICT, QUEUE_FULL),
    also={200: "The job that this idempotency key made before."},
    response_description="The job is on disk.",
)
async def enqueue_job(call: Call[EnqueueJob]) -> Answer:
    """Enqueue a job.

    Answered once it is on disk. To be able to repeat the call after a lost answer, send an `idempotency_key`: the same key
    with the same content gives the same job (200, `replayed: true`), with other content 409 `idempotency_conflict`.
    """
    call.principal.require_names([call.body.queue])
    command = Enqueue((commands.new_job(call.body),), commands.caller_of(call))
    (outcome,) = await call.runtime.lane("jobs.enqueue").submit(command, size=call.body_size)
    if isinstance(outcome, Refusal):
        raise outcome
    return Answer(_enqueued(outcome), status=200 if outcome.replayed else 201)


@router.post("/batch", name="enqueue_jobs", requires=Role.PRODUCER, answers=EnqueueResults)
async def enqueue_jobs(call: Call[EnqueueBatch]) -> Answer:
    """Enqueue many jobs in one commit.

    One result for each job, in the order sent. A job that is refused (a used key, a full queue) does not touch the others.
    """
    bodies = call.body.jobs
    call.principal.require_names([body.queue for body in bodies])
    command = Enqueue(tuple(commands.new_job(body) for body in bodies), commands.caller_of(call))
    outcomes = await call.runtime.lane("jobs.enqueue").submit(command, weight=len(bodies), size=call.body_size)
    return Answer(
        {
            "results": [
                {"status": outcome.http_status, "job": None, "problem": problem_of(outcome, call.request_id)}
                if isinstance(outcome, Refusal)
                else {"status": 200 if outcome.replayed else 201, "job": _enqueued(outcome), "problem": None}
                for outcome in outcomes
            ]
        }
    )


def _enqueued(outcome: Enqueued) -> dict[str, Any]:
    return {**job_view(outcome.job), "replayed": outcome.replayed, "deduplicated": False}


# -- workers ---------------------------------------------------------------------------------------------------------------


@router.post("/claim", name="claim_jobs", requires=Role.WORKER, answers=ClaimedJobs)
async def claim_jobs(call: Call[ClaimJobs]) -> Answer:
    """Take work, waiting for it if you like.

    Results of earlier work (`settlements`) are committed first. Then up to `limit` jobs are given to you, from the first of
    your `queues` that has any; within a queue by priority, then availability, then age. With `wait_seconds` the answer comes
    as soon as there is work, else empty at the end. Each job comes with a reservation: settle it with its token before
    `expires_at`, or send heartbeats. If the answer was lost, send the same claim with the same `claim_id` again.
    """
    body = call.body
    call.principal.require_names(body.queues)
    caller = commands.caller_of(call)
    settled: list[dict[str, Any]] = []
    if body.settlements:
        items = tuple(commands.settlement(item) for item in body.settlements)
        outcomes = await call.runtime.lane("jobs.settle").submit(
            Settle(items, caller), weight=len(items), size=call.body_size
        )
        settled = _settled_results(items, outcomes, call.request_id)
    gone, directory, clock = call.gone, call.runtime.state("keys"), call.runtime.clock

    def left() -> bool:
        """A caller that hung up, or whose key was revoked while it waited, is given nothing."""
        return bool(gone) or not directory.in_force(call.principal, clock.now())

    claimed = await call.runtime.desks["jobs"].claim(commands.claim(body, caller), body.wait_seconds, left)
    if claimed is None and not directory.in_force(call.principal, clock.now()):
        raise Refusal(UNAUTHENTICATED, "This API key is no longer in force.")
    claimed = claimed or Claimed()
    return Answer(
        {"jobs": [_granted(grant) for grant in claimed.grants], "replayed": claimed.replayed, "settled": settled},
        quiet=not claimed.grants and not settled,
    )


def _granted(grant: Any) -> dict[str, Any]:
    queue, type_, version = grant.flow
    return {
        "id": id_text(grant.id),
        "queue": queue,
        "type": type_,
        "schema_version": version,
        "payload": msgspec.Raw(grant.payload),
        "priority": grant.priority,
        "attempt": grant.attempt,
        "max_attempts": grant.max_attempts,
        "timeout_seconds": seconds(grant.timeout),
        "correlation_id": grant.correlation_id,
        "parent_operation_id": grant.parent_operation_id,
        "traceparent": grant.traceparent,
        "reservation": {"token": grant.token, "fence": grant.fence, "expires_at": to_text(grant.expires_at)},
    }


@router.post(
    "/{job_id}/heartbeat", name="heartbeat_job", requires=Role.WORKER, answers=Heartbeat, path=JOB, refuses=LOST[:2]
)
async def heartbeat_job(call: Call[HeartbeatJob]) -> Answer:
    """Extend a reservation.

    Send one well before `expires_at` (every third of the lease). The lease never goes past the attempt's own
    `timeout_seconds`. On 409 `reservation_lost` stop the work at once. May be repeated.
    """
    _check_progress(call.body, "#/progress")
    (outcome,) = await call.runtime.lane("jobs.renew").submit(
        Renew((commands.beat(call.path["job_id"], call.body),), commands.caller_of(call))
    )
    if isinstance(outcome, Refusal):
        raise outcome
    return Answer(_beaten(outcome))


@router.post("/heartbeats", name="heartbeat_jobs", requires=Role.WORKER, answers=HeartbeatResults)
async def heartbeat_jobs(call: Call[HeartbeatBatch]) -> Answer:
    """Extend many reservations in one commit. One result for each, in the order sent."""
    items = call.body.items
    for index, item in enumerate(items):
        _check_progress(item, f"#/items/{index}/progress")
    command = Renew(tuple(commands.beat(item.id, item) for item in items), commands.caller_of(call))
    outcomes = await call.runtime.lane("jobs.renew").submit(command, weight=len(items))
    nothing = {"expires_at": None, "cancel_requested": False, "cancel_reason": None, "release_requested": False}
    return Answer(
        {
            "results": [
                {
                    "status": outcome.http_status,
                    "id": item.id,
                    **nothing,
                    "problem": problem_of(outcome, call.request_id),
                }
                if isinstance(outcome, Refusal)
                else {"status": 200, "id": item.id, **_beaten(outcome), "problem": None}
                for item, outcome in zip(items, outcomes, strict=True)
            ]
        }
    )


def _check_progress(body: HeartbeatJob, pointer: str) -> None:
    if body.progress is not None and len(body.progress) > MOST_PROGRESS_BYTES:
        raise Refusal(
            PAYLOAD_TOO_LARGE,
            "The progress is too large.",
            errors=(FieldError(pointer, f"must have at most {MOST_PROGRESS_BYTES} bytes"),),
        )


def _beaten(renewed: Renewed) -> dict[str, Any]:
    return {
        "expires_at": to_text(renewed.expires_at),
        "cancel_requested": renewed.cancel_requested,
        "cancel_reason": renewed.cancel_reason,
        "release_requested": renewed.release_requested,
    }


@router.post(
    "/{job_id}/complete", name="complete_job", requires=Role.WORKER, answers=SettledJob, path=JOB, refuses=LOST
)
async def complete_job(call: Call[CompleteJob]) -> Answer:
    """Say that the work is done.

    The job becomes `succeeded`. A repeat with the same token and result is answered as before (`replayed: true`).
    """
    return await _settle(call, commands.completed(call.path["job_id"], call.body))


@router.post("/{job_id}/fail", name="fail_job", requires=Role.WORKER, answers=SettledJob, path=JOB, refuses=LOST)
async def fail_job(call: Call[FailJob]) -> Answer:
    """Say that the work failed, and whether repeating it is safe.

    With `retry: true` the job is `scheduled` by its backoff while attempts and `retry_until` allow, else `dead`. With
    `retry: false` it is `dead`. If the effect may have happened, call `unknown` instead.
    """
    return await _settle(call, commands.failed(call.path["job_id"], call.body))


@router.post(
    "/{job_id}/unknown", name="mark_job_unknown", requires=Role.WORKER, answers=SettledJob, path=JOB, refuses=LOST
)
async def mark_job_unknown(call: Call[UnknownJob]) -> Answer:
    """Say that the effect may or may not have happened.

    The job becomes `unknown` and is not touched again until an operator gives a verdict (`reconcile`).
    """
    return await _settle(call, commands.unknown(call.path["job_id"], call.body))


@router.post("/{job_id}/release", name="release_job", requires=Role.WORKER, answers=SettledJob, path=JOB, refuses=LOST)
async def release_job(call: Call[ReleaseJob]) -> Answer:
    """Give a job back unworked.

    Costs no attempt; releases are counted apart and have a ceiling of their own.
    """
    return await _settle(call, commands.released(call.path["job_id"], call.body))


@router.post("/settlements", name="settle_jobs", requires=Role.WORKER, answers=SettleResults)
async def settle_jobs(call: Call[SettleBatch]) -> Answer:
    """Settle many jobs in one commit. One result for each, in the order sent; each stands for itself."""
    items = tuple(commands.settlement(item) for item in call.body.items)
    outcomes = await call.runtime.lane("jobs.settle").submit(
        Settle(items, commands.caller_of(call)), weight=len(items), size=call.body_size
    )
    return Answer({"results": _settled_results(items, outcomes, call.request_id)})


async def _settle(call: Call[Any], item: Settlement) -> Answer:
    (outcome,) = await call.runtime.lane("jobs.settle").submit(
        Settle((item,), commands.caller_of(call)), size=call.body_size
    )
    if isinstance(outcome, Refusal):
        raise outcome
    return Answer(_settled(outcome))


def _settled(settled: Settled) -> dict[str, Any]:
    return {
        "id": id_text(settled.id),
        "state": settled.state.text,
        "attempt": settled.attempt,
        "available_at": None if settled.available_at is None else to_text(settled.available_at),
        "replayed": settled.replayed,
    }


def _settled_results(
    items: Sequence[Settlement],
    outcomes: Sequence[Settled | Refusal],
    request_id: str,
) -> list[dict[str, Any]]:
    nothing = {"state": None, "attempt": None, "available_at": None, "replayed": False}
    return [
        {"status": outcome.http_status, "id": id_text(item.id), **nothing, "problem": problem_of(outcome, request_id)}
        if isinstance(outcome, Refusal)
        else {"status": 200, **_settled(outcome), "problem": None}
        for item, outcome in zip(items, outcomes, strict=True)
    ]
