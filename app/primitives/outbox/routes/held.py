"""Routes of who holds messages: heartbeats and settlements."""

from __future__ import annotations

from typing import Any

from app.access import Role
from app.clock import to_text
from app.errors import NOT_FOUND, RESERVATION_LOST, SETTLEMENT_CONFLICT, Refusal
from app.http.call import Answer, Call
from app.http.routing import thin_router
from app.jsontext import IdText
from app.primitives.outbox.model.commands import Renew, Settle, Settlement
from app.primitives.outbox.routes import commands
from app.primitives.outbox.routes.results import settled_results, settled_view
from app.primitives.outbox.schemas.work import (
    HeartbeatMessage,
    MessageHeartbeat,
    RejectMessage,
    ReleaseMessage,
    RetryMessage,
    SentMessage,
    SettleBatch,
    SettledMessage,
    SettleResults,
    UnknownMessage,
)

router = thin_router("/v1/outbox", tags=["outbox"])

LOST = (NOT_FOUND, RESERVATION_LOST, SETTLEMENT_CONFLICT)
MESSAGE = {"message_id": IdText}
ONE = "/messages/{message_id}"


@router.post(
    f"{ONE}/heartbeat",
    name="heartbeat_message",
    requires=Role.WORKER,
    answers=MessageHeartbeat,
    path=MESSAGE,
    refuses=LOST[:2],
)
async def heartbeat_message(call: Call[HeartbeatMessage]) -> Answer:
    """Extend a reservation.

    Send one well before `expires_at`. On 409 `reservation_lost` stop at once. May be repeated.
    """
    beat = commands.beat(call.path["message_id"], call.body)
    (outcome,) = await call.runtime.lane("outbox.renew").submit(Renew((beat,), commands.caller_of(call)))
    if isinstance(outcome, Refusal):
        raise outcome
    return Answer({"expires_at": to_text(outcome.expires_at)})


@router.post(
    f"{ONE}/sent",
    name="mark_message_sent",
    requires=Role.WORKER,
    answers=SettledMessage,
    path=MESSAGE,
    refuses=LOST,
)
async def mark_message_sent(call: Call[SentMessage]) -> Answer:
    """Say that the destination has accepted it.

    The message becomes `sent`, or is deleted where its destination says so. A repeat with the same token and content is
    answered as before (`replayed: true`).
    """
    return await _settle(call, commands.sent(call.path["message_id"], call.body))


@router.post(
    f"{ONE}/retry", name="retry_message", requires=Role.WORKER, answers=SettledMessage, path=MESSAGE, refuses=LOST
)
async def retry_message(call: Call[RetryMessage]) -> Answer:
    """Say that it was certainly not accepted, and that sending it again is safe.

    It is `pending` again by its destination's backoff while attempts allow, else `dead`. If it may have been accepted, call
    `unknown` instead.
    """
    return await _settle(call, commands.retried(call.path["message_id"], call.body))


@router.post(
    f"{ONE}/reject", name="reject_message", requires=Role.WORKER, answers=SettledMessage, path=MESSAGE, refuses=LOST
)
async def reject_message(call: Call[RejectMessage]) -> Answer:
    """Say that the destination has refused it for good: it is `dead`."""
    return await _settle(call, commands.rejected(call.path["message_id"], call.body))


@router.post(
    f"{ONE}/unknown",
    name="mark_message_unknown",
    requires=Role.WORKER,
    answers=SettledMessage,
    path=MESSAGE,
    refuses=LOST,
)
async def mark_message_unknown(call: Call[UnknownMessage]) -> Answer:
    """Say that it may or may not have been accepted.

    The message becomes `unknown` and is not touched again until there is a verdict (`reconcile`).
    """
    return await _settle(call, commands.unknown(call.path["message_id"], call.body))


@router.post(
    f"{ONE}/release", name="release_message", requires=Role.WORKER, answers=SettledMessage, path=MESSAGE, refuses=LOST
)
async def release_message(call: Call[ReleaseMessage]) -> Answer:
    """Give a message back unworked.

    Costs no attempt; releases are counted apart and have a ceiling of their own.
    """
    return await _settle(call, commands.released(call.path["message_id"], call.body))


@router.post("/settlements", name="settle_messages", requires=Role.WORKER, answers=SettleResults)
async def settle_messages(call: Call[SettleBatch]) -> Answer:
    """Settle many messages in one commit. One result for each, in the order sent; each stands for itself."""
    items = tuple(commands.settlement(item) for item in call.body.items)
    outcomes = await call.runtime.lane("outbox.settle").submit(
        Settle(items, commands.caller_of(call)), weight=len(items), size=call.body_size
    )
    return Answer({"results": settled_results(items, outcomes, call.request_id)})


async def _settle(call: Call[Any], item: Settlement) -> Answer:
    (outcome,) = await call.runtime.lane("outbox.settle").submit(
        Settle((item,), commands.caller_of(call)), size=call.body_size
    )
    if isinstance(outcome, Refusal):
        raise outcome
    return Answer(settled_view(outcome))
