"""Routes of what workers hold: heartbeats and settlements."""

from __future__ import annotations

from typing import Any

from app.access import Role
from app.clock import to_text
from app.errors import NOT_FOUND, PAYLOAD_TOO_LARGE, RESERVATION_LOST, SETTLEMENT_CONFLICT, FieldError, Refusal
from app.http.call import Answer, Call
from app.http.problem import problem_of
from app.http.routing import thin_router
from app.jsontext import IdText
from app.primitives.jobs.model import Renew, Renewed, Settle, Settlement
from app.primitives.jobs.routes import commands
from app.primitives.jobs.routes.results import settled_results, settled_view
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

router = thin_router("/v1/jobs", tags=["jobs"])

MOST_PROGRESS_BYTES = 4096
LOST = (NOT_FOUND, RESERVATION_LOST, SETTLEMENT_CONFLICT)
JOB = {"job_id": IdText}


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
    return Answer({"results": settled_results(items, outcomes, call.request_id)})


async def _settle(call: Call[Any], item: Settlement) -> Answer:
    (outcome,) = await call.runtime.lane("jobs.settle").submit(
        Settle((item,), commands.caller_of(call)), size=call.body_size
    )
    if isinstance(outcome, Refusal):
        raise outcome
    return Answer(settled_view(outcome))
