"""Routes of viewers and operators about jobs: read, list, explain, cancel, retry, reconcile, bulk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, TypeVar

import structlog

from app.access import Role
from app.errors import NOT_FOUND, STATE_CONFLICT, UNIQUE_CONFLICT, VERDICT_CONFLICT, VERDICT_REQUIRED, Refusal
from app.http.call import Answer, Call
from app.http.paging import cursor, place
from app.http.routing import thin_router
from app.jsontext import IdText
from app.primitives.jobs.model import STATE_NAMES, Claim, Control, Filter, Job, JobDetail, State, id_bytes, id_text
from app.primitives.jobs.ops import sweep
from app.primitives.jobs.ops.bulk import Bulk
from app.primitives.jobs.ops.explain import Explain, Explanation, Reason
from app.primitives.jobs.ops.inspect import Get, Listing
from app.primitives.jobs.routes.commands import caller_of
from app.primitives.jobs.schemas.control import (
    CancelJob,
    ChangeJobs,
    ExplanationRead,
    JobFilter,
    JobParams,
    JobsChangedRead,
    ListJobsParams,
    ReconcileJob,
    RetryJob,
)
from app.primitives.jobs.schemas.views import (
    JobChangedRead,
    JobDetailRead,
    JobListRead,
    detail_view,
    job_view,
    keyed_view,
    moment_view,
)

log = structlog.get_logger("tenure.jobs")
router = thin_router("/v1/jobs", tags=["jobs"])

JOB = {"job_id": IdText}
MOST_ROUNDS = 5
Read = TypeVar("Read", JobDetail, Explanation)


# -- reading ---------------------------------------------------------------------------------------------------------------


@router.get("", name="list_jobs", requires=Role.VIEWER, answers=JobListRead, response_description="A page of jobs.")
async def list_jobs(call: Call[None, ListJobsParams]) -> Answer:
    """List jobs, without their payloads.

    Newest first. A key that is limited to names sees only the jobs of those queues. A page may be shorter than `limit`, or
    empty, though there are more: only `next_cursor: null` means the end.
    """
    query = call.query
    if query.queue is not None:
        call.principal.require_names([query.queue])
    after = place(call, "jobs", (bytes,))
    listing = Listing(_filter(query), call.principal, query.limit, None if after is None else after[0])
    page = await call.runtime.lane("jobs.list").submit(listing)
    following = None if page.after is None else cursor(call, "jobs", (page.after,))
    return Answer({"items": [keyed_view(job) for job in page.jobs], "next_cursor": following})


@router.get(
    "/{job_id}",
    name="get_job",
    requires=Role.VIEWER,
    answers=JobDetailRead,
    path=JOB,
    refuses=(NOT_FOUND,),
    response_description="The job.",
)
async def get_job(call: Call[None, JobParams]) -> Answer:
    """Get one job with its history.

    `last_error` is the last failure that a worker reported, also if a lease was lost since. Payload and result are given
    byte for byte, only if `include` names them, and only to operators.
    """
    include = (call.query.include or "").split(",")
    payload, result = "payload" in include, "result" in include
    if payload or result:
        call.principal.require(Role.OPERATOR)
    command = Get(_id(call), call.principal, payload=payload, result=result)
    detail = await _current(call, lambda: call.runtime.lane("jobs.get").submit(command))
    return Answer(detail_view(detail, evidence=call.principal.may(Role.OPERATOR)))


@router.get(
    "/{job_id}/explain",
    name="explain_job",
    requires=Role.VIEWER,
    answers=ExplanationRead,
    path=JOB,
    refuses=(NOT_FOUND,),
    response_description="The reasons.",
)
async def explain_job(call: Call) -> Answer:
    """Explain why a job is not running now.

    Every reason with its evidence: not due yet, its queue paused, all slots of its concurrency key held, no worker seen that
    handles its type and version, others before it, running already, waiting for a verdict, ended. `ready`: nothing holds it.
    """
    command = Explain(_id(call), call.principal, waiting_claims(call.runtime))
    explanation = await _current(call, lambda: call.runtime.lane("jobs.explain").submit(command))
    queue, type_, version = explanation.job.flow
    return Answer(
        {
            "id": id_text(explanation.job.id),
            "queue": queue,
            "type": type_,
            "schema_version": version,
            "state": explanation.job.state.text,
            "reasons": [_reason_view(reason) for reason in explanation.reasons],
        }
    )


async def _current(call: Call[Any, Any], read: Callable[[], Awaitable[Read]]) -> Read:
    """What `read` gives. An attempt whose lease has ended is abandoned first, so that the reader sees what is true."""
    found = await read()
    for _ in range(MOST_ROUNDS):
        if not _has_lapsed(found.job, call.runtime.clock.now()):
            break
        await call.runtime.lane("jobs.abandon").submit(sweep.Batch())
        found = await read()
    return found


def _has_lapsed(job: Job, now: int) -> bool:
    return job.state is State.RUNNING and job.due_at is not None and job.due_at <= now


def waiting_claims(runtime: Any) -> tuple[Claim, ...]:
    """The claims that wait at this process's desk at this moment."""
    return tuple(runtime.desks["jobs"].waiting())


def _reason_view(reason: Reason) -> dict[str, Any]:
    evidence = asdict(reason.evidence)
    for name in ("at", "since", "expires_at"):
        evidence[name] = moment_view(evidence[name])
    evidence["holders"] = [
        {"id": id_text(one.id), "state": one.state.text, "expires_at": moment_view(one.expires_at)}
        for one in reason.evidence.holders
    ]
    return {"code": reason.code, "detail": reason.detail, "evidence": evidence}


# -- one job ---------------------------------------------------------------------------------------------------------------


@router.post(
    "/{job_id}/cancel",
    name="cancel_job",
    requires=Role.OPERATOR,
    answers=JobChangedRead,
    path=JOB,
    refuses=(NOT_FOUND, STATE_CONFLICT, VERDICT_REQUIRED),
    response_description="The job.",
)
async def cancel_job(call: Call[CancelJob]) -> Answer:
    """Cancel a job, or ask for it.

    A job that waits is `cancelled` at once. A running one is asked: its worker learns it at the next heartbeat, and the job
    becomes `cancelled` when it is released, fails or is abandoned; a `complete` that comes all the same counts. May be
    repeated (`replayed: true`). A job that ended otherwise is 409 `state_conflict`, an unknown one 409 `verdict_required`.
    """
    return await _control(call, "jobs.cancel", Control(_id(call), caller_of(call), call.body.reason))


@router.post(
    "/{job_id}/retry",
    name="retry_job",
    requires=Role.OPERATOR,
    answers=JobChangedRead,
    path=JOB,
    refuses=(NOT_FOUND, STATE_CONFLICT, UNIQUE_CONFLICT, VERDICT_REQUIRED),
    response_description="The job.",
)
async def retry_job(call: Call[RetryJob]) -> Answer:
    """Give a dead or cancelled job a fresh budget.

    It becomes `available`, and its attempts, lease losses, releases and throttles are counted from 0 again. May be repeated
    with the same reason until something else happens to the job (`replayed: true`). An unknown job needs a verdict first
    (409 `verdict_required`); any other is 409 `state_conflict`. It takes its unique key again: if another job holds that by
    now, 409 `unique_conflict`. With a concurrency key it comes to the place in line that its enqueue gave it.
    """
    return await _control(call, "jobs.retry", Control(_id(call), caller_of(call), call.body.reason))


@router.post(
    "/{job_id}/reconcile",
    name="reconcile_job",
    requires=Role.OPERATOR,
    answers=JobChangedRead,
    path=JOB,
    refuses=(NOT_FOUND, STATE_CONFLICT, VERDICT_CONFLICT),
    response_description="The job.",
)
async def reconcile_job(call: Call[ReconcileJob]) -> Answer:
    """Give the verdict on an unknown job.

    The first verdict counts: the same one again is answered `replayed: true`, another one 409 `verdict_conflict`. The
    evidence is kept in the job's events. A job that was retried by a verdict and is unknown anew needs a new verdict; send
    the same `X-Request-Id` with a repeat, so that it can be told from one. A job that was never unknown is 409
    `state_conflict`.
    """
    body = call.body
    command = Control(_id(call), caller_of(call), body.reason or "", body.verdict, body.evidence, body.reference)
    return await _control(call, "jobs.reconcile", command)


async def _control(call: Call[Any], lane: str, command: Control) -> Answer:
    controlled = await call.runtime.lane(lane).submit(command, size=call.body_size)
    return Answer({**job_view(controlled.job), "replayed": controlled.replayed})


# -- many jobs -------------------------------------------------------------------------------------------------------------


@router.post(
    "/bulk",
    name="change_jobs",
    requires=Role.OPERATOR,
    answers=JobsChangedRead,
    response_description="What was changed.",
)
async def change_jobs(call: Call[ChangeJobs]) -> Answer:
    """Cancel, retry or purge all jobs that a filter fits.

    Send it with `dry_run: true` first: `matched` then says how many jobs the same call would change. They are changed some
    hundreds at a time, so it may be sent again after a lost answer, and goes on where it was. Only jobs that the action can
    change are matched; unknown jobs never are, and only ended ones are purged. Jobs that come into question while it runs
    are left alone. At least one filter is needed. Written into the audit once, with the filter and the counts.
    """
    body = call.body
    wanted = _filter(body.filter)
    if wanted.queue is not None:
        call.principal.require_names([wanted.queue])
    bulk = Bulk(body.action, wanted, caller_of(call), body.reason, body.limit, dry_run=body.dry_run)
    lane = call.runtime.lane("jobs.bulk")
    more = True
    try:
        while more:
            step = await lane.submit(bulk)
            left = body.limit - step.matched
            bulk = replace(bulk, left=left, before=step.before, matched=step.matched, changed=step.changed)
            more = step.more
    except Refusal as refusal:
        log.warning("bulk_broke_off", action=body.action.value, changed=bulk.changed, code=refusal.code.name)
        if bulk.matched:
            with suppress(Refusal):  # the first one is the caller's answer
                _ = lane.put(replace(bulk, over=True))  # what was done is audited as soon as the database takes it
        raise
    return Answer(
        {
            "action": body.action.value,
            "dry_run": body.dry_run,
            "matched": bulk.matched,
            "changed": bulk.changed,
            "more": bulk.matched >= body.limit,
        }
    )


# -- from what was sent to commands ----------------------------------------------------------------------------------------


def _id(call: Call[Any, Any]) -> bytes:
    return id_bytes(call.path["job_id"])


def _filter(sent: ListJobsParams | JobFilter) -> Filter:
    return Filter(
        queue=sent.queue,
        type=sent.type,
        state=None if sent.state is None else STATE_NAMES[sent.state.value],
        correlation_id=sent.correlation_id,
        parent_operation_id=sent.parent_operation_id,
        worker=sent.worker,
        category=sent.category,
        created_after=sent.created_after,
        created_before=sent.created_before,
    )
