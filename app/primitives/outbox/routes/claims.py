"""The route of a claim: results of earlier work first, then messages, waiting for them if asked to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from app.access import Role
from app.clock import to_text
from app.errors import STATE_CONFLICT, Refusal
from app.http.call import Answer, Call
from app.http.routing import thin_router
from app.http.waiting import require_in_force, watch
from app.ids import id_text
from app.primitives.outbox.model.commands import Claim, Claimed, Granted, Round, Settle
from app.primitives.outbox.routes import commands
from app.primitives.outbox.routes.results import settled_results
from app.primitives.outbox.schemas.work import ClaimedMessages, ClaimMessages

router = thin_router("/v1/outbox", tags=["outbox"])


@router.post("/claim", name="claim_messages", requires=Role.WORKER, answers=ClaimedMessages, refuses=(STATE_CONFLICT,))
async def claim_messages(call: Call[ClaimMessages]) -> Answer:
    """Take messages to send, waiting for them if you like.

    Results of earlier work (`settlements`) are committed first. Then up to `limit` messages are given to you (one by default),
    from the first of your `destinations` that has any, the oldest first; of an ordering key one at a time. Each comes with a
    reservation: say what became of it with its token before `expires_at`, or send heartbeats. A message whose holder is lost
    becomes `unknown`. If the answer was lost, send the same claim with the same `claim_id` again. 409 `state_conflict`: the
    service itself delivers to one of these destinations.
    """
    call.principal.require_names(call.body.destinations)
    left = watch(call)
    claim = commands.claim(call.body, commands.caller_of(call))
    settled, claimed = await _first_try(call, claim, left)
    if claimed is None:
        claimed = await call.runtime.desks["outbox"].claim(claim, call.body.wait_seconds, left)
    if claimed is None:
        require_in_force(call)
        claimed = Claimed()
    return Answer(
        {"messages": [_granted(grant) for grant in claimed.grants], "replayed": claimed.replayed, "settled": settled},
        quiet=not claimed.grants and not settled,
    )


async def _first_try(
    call: Call[ClaimMessages], claim: Claim, left: Callable[[], bool]
) -> tuple[list[dict[str, Any]], Claimed | None]:
    """Commit the results that came along and claim at once, in one transaction. None: nothing was there, or none came."""
    if not call.body.settlements:
        return [], None
    items = tuple(commands.settlement(item) for item in call.body.settlements)
    settle = Settle(items, claim.caller)
    if call.runtime.draining.is_set():
        outcomes = await call.runtime.lane("outbox.settle").submit(settle, weight=len(items), size=call.body_size)
        return settled_results(items, outcomes, call.request_id), Claimed()
    weight = len(items) + claim.limit
    worked = await call.runtime.lane("outbox.work").submit(Round(settle, claim), weight=weight, size=call.body_size)
    settled = settled_results(items, worked.settled, call.request_id)
    if isinstance(worked.claimed, Refusal):
        raise worked.claimed
    if not worked.claimed.grants:
        return settled, Claimed() if call.body.wait_seconds <= 0 else None
    if left():
        await call.runtime.lane("outbox.give_back").submit(worked.claimed, weight=len(worked.claimed.grants))
        return settled, Claimed()
    return settled, worked.claimed


def _granted(grant: Granted) -> dict[str, Any]:
    destination, type_ = grant.flow
    return {
        "id": id_text(grant.id),
        "message_key": grant.message_key,
        "destination": destination,
        "type": type_,
        "schema_version": grant.schema_version,
        "payload": msgspec.Raw(grant.payload),
        "occurred_at": to_text(grant.occurred_at),
        "ordering_key": grant.ordering_key,
        "correlation_id": grant.correlation_id,
        "target_reference": grant.target_reference,
        "traceparent": grant.traceparent,
        "attempt": grant.attempt,
        "max_attempts": grant.max_attempts,
        "reservation": {"token": grant.token, "fence": grant.fence, "expires_at": to_text(grant.expires_at)},
    }
