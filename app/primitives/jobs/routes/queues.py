"""Routes of queues and statistics."""

from __future__ import annotations

from app.access import Role
from app.errors import NOT_FOUND
from app.http.call import Answer, Call
from app.http.paging import PageParams, page, place
from app.http.routing import thin_router
from app.jsontext import Name
from app.primitives.jobs.ops import queues as ops
from app.primitives.jobs.ops.stats import Report, Stats
from app.primitives.jobs.routes.commands import caller_of
from app.primitives.jobs.routes.control import waiting_claims
from app.primitives.jobs.schemas.queues import (
    PauseQueue,
    PutQueue,
    QueueChangedRead,
    QueueListRead,
    QueueRead,
    ResumeQueue,
    StatsRead,
    queue_view,
    stats_view,
)

router = thin_router("/v1", tags=["queues"])

QUEUE = {"name": Name}


@router.get(
    "/queues",
    name="list_queues",
    requires=Role.VIEWER,
    answers=QueueListRead,
    response_description="A page of queues.",
)
async def list_queues(call: Call[None, PageParams]) -> Answer:
    """List queues by name, with their counts by state.

    A key that is limited to names sees only those queues.
    """
    after = place(call, "queues", (str,))
    listing = ops.Listing(call.principal, call.query.limit, None if after is None else after[0])
    rows = await call.runtime.lane("jobs.queues").submit(listing)
    return Answer(page(call, "queues", rows, queue_view, lambda queue: (queue.name,)))


@router.get(
    "/queues/{name}",
    name="get_queue",
    requires=Role.VIEWER,
    answers=QueueRead,
    path=QUEUE,
    refuses=(NOT_FOUND,),
    response_description="The queue.",
)
async def get_queue(call: Call) -> Answer:
    """Get one queue with its counts by state."""
    queue = await call.runtime.lane("jobs.queue").submit(ops.Get(call.path["name"], call.principal))
    return Answer(queue_view(queue))


@router.put(
    "/queues/{name}",
    name="put_queue",
    requires=Role.OPERATOR,
    answers=QueueRead,
    path=QUEUE,
    response_description="The queue.",
)
async def put_queue(call: Call[PutQueue]) -> Answer:
    """Set a queue, making it if it is not there.

    What is left out is unset; whether the queue is paused is not touched. May be repeated. Other replicas know a new
    `max_depth`, `retention_seconds` or `contract_policy` within three seconds.
    """
    name, body = call.path["name"], call.body
    call.principal.require_names([name])
    command = ops.Put(
        name, caller_of(call), body.max_depth, body.retention_seconds, body.description, body.contract_policy
    )
    return Answer(queue_view(await call.runtime.lane("jobs.put_queue").submit(command)))


@router.post(
    "/queues/{name}/pause",
    name="pause_queue",
    requires=Role.OPERATOR,
    answers=QueueChangedRead,
    path=QUEUE,
    refuses=(NOT_FOUND,),
    response_description="The queue.",
)
async def pause_queue(call: Call[PauseQueue]) -> Answer:
    """Pause a queue.

    From the commit on, no claim takes work from it, on any replica. What runs goes on, and jobs may still be enqueued. A
    queue that is paused already keeps its first moment and reason (`replayed: true`).
    """
    return await _pause(call, call.body.reason, paused=True)


@router.post(
    "/queues/{name}/resume",
    name="resume_queue",
    requires=Role.OPERATOR,
    answers=QueueChangedRead,
    path=QUEUE,
    refuses=(NOT_FOUND,),
    response_description="The queue.",
)
async def resume_queue(call: Call[ResumeQueue]) -> Answer:
    """Let a paused queue go on.

    Claims that wait for it are tried at once. A queue that is not paused is answered as it is (`replayed: true`).
    """
    return await _pause(call, call.body.reason, paused=False)


async def _pause(call: Call[PauseQueue] | Call[ResumeQueue], reason: str, *, paused: bool) -> Answer:
    name = call.path["name"]
    call.principal.require_names([name])
    changed = await call.runtime.lane("jobs.pause_queue").submit(ops.Pause(name, caller_of(call), reason, paused))
    return Answer({**queue_view(changed.queue), "replayed": changed.replayed})


@router.get("/stats", name="get_stats", requires=Role.VIEWER, answers=StatsRead, response_description="The figures.")
async def get_stats(call: Call) -> Answer:
    """Get figures of all queues, types and workers.

    Counts are exact at the moment `at`; rates and durations are of the last hour. Taken at most once a second in each
    process, whoever asks, and less often where the counting takes long. A key that is limited to names sees only those
    queues.
    """
    report: Report = await call.runtime.lane("jobs.stats").submit(Stats(waiting=waiting_claims(call.runtime)))
    return Answer(stats_view(report, sorted(name for name in report.paused_at if call.principal.allows(name))))
