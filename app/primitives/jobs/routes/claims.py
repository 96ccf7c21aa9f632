"""The route of a claim: results of earlier work first, then new work, waiting for it if asked to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from app.access import Role
from app.clock import seconds, to_text
from app.errors import Refusal
from app.http.call import Answer, Call
from app.http.routing import thin_router
from app.http.waiting import require_in_force, watch
from app.primitives.jobs.model import Claim, Claimed, Round, Settle, id_text
from app.primitives.jobs.routes import commands
from app.primitives.jobs.routes.results import settled_results
from app.primitives.jobs.schemas.work import ClaimedJobs, ClaimJobs

router = thin_router("/v1/jobs", tags=["jobs"])


@router.post("/claim", name="claim_jobs", requires=Role.WORKER, answers=ClaimedJobs)
async def claim_jobs(call: Call[ClaimJobs]) -> Answer:
    """Take work, waiting for it if you like.

    Results of earlier work (`settlements`) are committed first. Then up to `limit` jobs are given to you, from the first of
    your `queues` that has any; within a queue by priority, then availability, then age. With `wait_seconds` the answer comes
    as soon as there is work, else empty at the end. Each job comes with a reservation: settle it with its token before
    `expires_at`, or send heartbeats. If the answer was lost, send the same claim with the same `claim_id` again.
    """
    call.principal.require_names(call.body.queues)
    left = watch(call)
    claim = commands.claim(call.body, commands.caller_of(call))
    settled, claimed = await _first_try(call, claim, left)
    if claimed is None:
        claimed = await call.runtime.desks["jobs"].claim(claim, call.body.wait_seconds, left)
    if claimed is None:
        require_in_force(call)
        claimed = Claimed()
    return Answer(
        {"jobs": [_granted(grant) for grant in claimed.grants], "replayed": claimed.replayed, "settled": settled},
        quiet=not claimed.grants and not settled,
    )


async def _first_try(
    call: Call[ClaimJobs], claim: Claim, left: Callable[[], bool]
) -> tuple[list[dict[str, Any]], Claimed | None]:
    """Commit the results that came along and claim at once, in one transaction. None: nothing was there, or none came."""
    if not call.body.settlements:
        return [], None
    items = tuple(commands.settlement(item) for item in call.body.settlements)
    settle = Settle(items, claim.caller)
    if call.runtime.draining.is_set():
        outcomes = await call.runtime.lane("jobs.settle").submit(settle, weight=len(items), size=call.body_size)
        return settled_results(items, outcomes, call.request_id), Claimed()
    weight = len(items) + claim.limit
    worked = await call.runtime.lane("jobs.work").submit(Round(settle, claim), weight=weight, size=call.body_size)
    settled = settled_results(items, worked.settled, call.request_id)
    if isinstance(worked.claimed, Refusal):
        raise worked.claimed
    if not worked.claimed.grants:
        return settled, Claimed() if call.body.wait_seconds <= 0 else None
    if left():
        await call.runtime.lane("jobs.give_back").submit(worked.claimed, weight=len(worked.claimed.grants))
        return settled, Claimed()
    return settled, worked.claimed


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
