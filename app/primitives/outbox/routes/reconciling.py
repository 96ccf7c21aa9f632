"""Routes of reconcilers: take unknown messages, and say what became of them."""

from __future__ import annotations

from typing import Any

import msgspec

from app.access import Role
from app.clock import micros, to_text
from app.errors import NOT_FOUND, RESERVATION_LOST, SETTLEMENT_CONFLICT, STATE_CONFLICT
from app.http.call import Answer, Call
from app.http.routing import thin_router
from app.http.waiting import require_in_force, watch
from app.ids import id_bytes, id_text
from app.jsontext import IdText
from app.primitives.outbox.model.commands import Claim
from app.primitives.outbox.model.finding import ClaimedDoubts as Claimed
from app.primitives.outbox.model.finding import Doubtful, Finding, Found, finding_digest
from app.primitives.outbox.model.states import Verdict
from app.primitives.outbox.routes import commands
from app.primitives.outbox.schemas.reconciling import (
    ClaimDoubts,
    ClaimedDoubts,
    FindingWord,
    FoundMessage,
    GiveVerdict,
)
from app.primitives.outbox.schemas.views import message_view

router = thin_router("/v1/outbox/reconciliations", tags=["outbox"])


@router.post(
    "/claim", name="claim_reconciliations", requires=Role.WORKER, answers=ClaimedDoubts, refuses=(STATE_CONFLICT,)
)
async def claim_reconciliations(call: Call[ClaimDoubts]) -> Answer:
    """Take unknown messages, to find out what became of them.

    Each comes with a reservation of its own; ask the destination by `message_key` or `provider_operation_id`, and give the
    verdict before `expires_at`. A try that is lost costs one of the budget and gives the message to the next. If the answer was
    lost, send the same claim with the same `claim_id` again. 409 `state_conflict`: the service itself finds out for one of these
    destinations.
    """
    body = call.body
    call.principal.require_names(body.destinations)
    claim = Claim(
        destinations=tuple(dict.fromkeys(body.destinations)),
        types=tuple(dict.fromkeys(body.types or ())),
        worker=body.worker,
        limit=body.limit,
        lease=None if body.lease_seconds is None else micros(body.lease_seconds),
        caller=commands.caller_of(call),
        claim_id=body.claim_id,
    )
    claimed: Claimed | None = await call.runtime.desks["outbox.reconciliations"].claim(
        claim, body.wait_seconds, watch(call)
    )
    if claimed is None:
        require_in_force(call)
        claimed = Claimed()
    return Answer(
        {"messages": [_doubtful(grant) for grant in claimed.grants], "replayed": claimed.replayed},
        quiet=not claimed.grants,
    )


def _doubtful(grant: Doubtful) -> dict[str, Any]:
    return {
        **message_view(grant.message),
        "payload": msgspec.Raw(grant.payload),
        "traceparent": grant.traceparent,
        "unknown_since": to_text(grant.unknown_since),
        "asked": grant.asked,
        "reconcile_budget": grant.budget,
        "reservation": {"token": grant.token, "fence": grant.fence, "expires_at": to_text(grant.expires_at)},
    }


@router.post(
    "/{message_id}/verdict",
    name="give_verdict",
    requires=Role.WORKER,
    answers=FoundMessage,
    path={"message_id": IdText},
    refuses=(NOT_FOUND, RESERVATION_LOST, SETTLEMENT_CONFLICT),
    response_description="The message after what you found out.",
)
async def give_verdict(call: Call[GiveVerdict]) -> Answer:
    """Say what became of an unknown message that you hold.

    The first verdict stands, whoever gives it, and is audited with its evidence: if an operator or a late answer was quicker, 409
    `reservation_lost` names it. May be repeated: the same again is answered as before (`replayed: true`).
    """
    body = call.body
    verdict = None if body.verdict is FindingWord.UNDECIDED else Verdict(body.verdict.value)
    finding = Finding(
        id=id_bytes(call.path["message_id"]),
        token=body.token,
        verdict=verdict,
        evidence=body.evidence,
        digest=finding_digest(verdict, body.evidence, body.provider_operation_id, body.reason),
        caller=commands.caller_of(call),
        reference=body.provider_operation_id,
        reason=body.reason,
    )
    found: Found = await call.runtime.lane("outbox.find").submit(finding, size=call.body_size)
    return Answer(
        {
            "id": id_text(found.id),
            "state": found.state.text,
            "needs_operator": found.needs_operator,
            "next_at": None if found.next_at is None else to_text(found.next_at),
            "replayed": found.replayed,
        }
    )
