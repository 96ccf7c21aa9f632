"""Routes of producers: enqueue, one or many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.access import Role
from app.errors import (
    CONTRACT_REQUIRED,
    CONTRACT_VIOLATED,
    IDEMPOTENCY_CONFLICT,
    PAYLOAD_INVALID,
    QUEUE_FULL,
    UNIQUE_CONFLICT,
    FieldError,
    Refusal,
)
from app.http.call import Answer, Call
from app.http.problem import problem_of
from app.http.routing import thin_router
from app.primitives.jobs.model import Enqueue, Enqueued
from app.primitives.jobs.routes import commands, warnings
from app.primitives.jobs.schemas.views import job_view
from app.primitives.jobs.schemas.work import EnqueueBatch, EnqueuedJob, EnqueueJob, EnqueueResults

router = thin_router("/v1/jobs", tags=["jobs"])


@router.post(
    "",
    name="enqueue_job",
    status_code=201,
    requires=Role.PRODUCER,
    answers=EnqueuedJob,
    refuses=(
        IDEMPOTENCY_CONFLICT,
        UNIQUE_CONFLICT,
        CONTRACT_REQUIRED,
        CONTRACT_VIOLATED,
        PAYLOAD_INVALID,
        QUEUE_FULL,
    ),
    headers={warnings.HEADER: warnings.DESCRIPTION},
    also={200: "A job that was there before: of this idempotency key, or holding this unique or debounce key."},
    response_description="The job is on disk.",
)
async def enqueue_job(call: Call[EnqueueJob]) -> Answer:
    """Enqueue a job.

    Answered once it is on disk. To be able to repeat the call after a lost answer, send an `idempotency_key`: the same key
    with the same content gives the same job (200, `replayed: true`), with other content 409 `idempotency_conflict`.

    With `unique` or `debounce`, a job that holds the key is the answer (200, `deduplicated: true`), or 409 `unique_conflict`,
    which names it (`job_id`, `state`). With `concurrency`, the job is `blocked` while all slots of its key are held.

    A payload that does not fit the schema in its type's contract is refused (422 `payload_invalid`). A type without a valid
    contract is taken, taken with a warning in a header, or refused, by the `contract_policy` of the queue.
    """
    call.principal.require_names([call.body.queue])
    command = Enqueue((commands.new_job(call.body),), commands.caller_of(call))
    (outcome,) = await call.runtime.lane("jobs.enqueue").submit(command, size=call.body_size)
    if isinstance(outcome, Refusal):
        raise outcome
    return Answer(_enqueued(outcome), status=_status(outcome), headers=warnings.headers_of((outcome,)))


@router.post(
    "/batch",
    name="enqueue_jobs",
    requires=Role.PRODUCER,
    answers=EnqueueResults,
    headers={warnings.HEADER: warnings.DESCRIPTION},
)
async def enqueue_jobs(call: Call[EnqueueBatch]) -> Answer:
    """Enqueue many jobs in one commit.

    One result for each job, in the order sent. A job that is refused (a used key, a full queue, a payload that
    does not fit) does not touch the others.
    """
    bodies = call.body.jobs
    call.principal.require_names([body.queue for body in bodies])
    command = Enqueue(tuple(commands.new_job(body) for body in bodies), commands.caller_of(call))
    outcomes = await call.runtime.lane("jobs.enqueue").submit(command, weight=len(bodies), size=call.body_size)
    return Answer(
        {
            "results": [
                {
                    "status": outcome.http_status,
                    "job": None,
                    "problem": problem_of(_at(index, outcome), call.request_id),
                }
                if isinstance(outcome, Refusal)
                else {"status": _status(outcome), "job": _enqueued(outcome), "problem": None}
                for index, outcome in enumerate(outcomes)
            ]
        },
        headers=warnings.headers_of(outcomes),
    )


def _at(index: int, refusal: Refusal) -> Refusal:
    """The refusal of one job of a batch, with pointers that lead into the whole request."""
    errors = tuple(FieldError(f"#/jobs/{index}{one.pointer.removeprefix('#')}", one.detail) for one in refusal.errors)
    return replace(refusal, errors=errors)


def _enqueued(outcome: Enqueued) -> dict[str, Any]:
    return {**job_view(outcome.job), "replayed": outcome.replayed, "deduplicated": outcome.deduplicated}


def _status(outcome: Enqueued) -> int:
    return 200 if outcome.replayed or outcome.deduplicated else 201
