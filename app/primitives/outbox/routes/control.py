"""Routes of viewers and operators about messages: read, list, figures, verdicts, housekeeping."""

from __future__ import annotations

from collections import Counter
from typing import Any

from app.access import Role
from app.errors import NOT_FOUND, STATE_CONFLICT, VERDICT_CONFLICT
from app.http.call import Answer, Call
from app.http.paging import cursor, place
from app.http.routing import thin_router
from app.ids import id_bytes
from app.jsontext import IdText
from app.primitives.outbox.model.records import Filter, MessageDetail, Reconcile
from app.primitives.outbox.model.states import STATE_NAMES, State
from app.primitives.outbox.ops import control, sweep
from app.primitives.outbox.ops.inspect import Get, Listing, Stats
from app.primitives.outbox.routes.commands import caller_of
from app.primitives.outbox.schemas.control import (
    ListMessagesParams,
    MessageParams,
    MessagesChangedRead,
    OutboxStatsRead,
    PurgeMessages,
    ReconcileMessage,
    ReleaseStaleMessages,
    RequeueMessages,
)
from app.primitives.outbox.schemas.views import (
    MessageDetailRead,
    MessageListRead,
    ReconciledRead,
    detail_view,
    message_view,
)

router = thin_router("/v1/outbox", tags=["outbox"])

MESSAGE = {"message_id": IdText}
MOST_ROUNDS = 5


@router.get(
    "/messages",
    name="list_messages",
    requires=Role.VIEWER,
    answers=MessageListRead,
    response_description="A page of messages.",
)
async def list_messages(call: Call[None, ListMessagesParams]) -> Answer:
    """List messages, without their payloads.

    Newest first. A key that is limited to names sees only the messages of those destinations. A page may be shorter than
    `limit`, or empty, though there are more: only `next_cursor: null` means the end. Rows that a producer wrote by SQL are
    seen once they are adopted, which takes a fraction of a second.
    """
    query = call.query
    if query.destination is not None:
        call.principal.require_names([query.destination])
    after = place(call, "messages", (bytes,))
    wanted = Filter(
        query.destination, query.type, None if query.state is None else query.state.value, query.message_key
    )
    listing = Listing(wanted, call.principal, query.limit, None if after is None else after[0])
    page = await call.runtime.lane("outbox.list").submit(listing)
    following = None if page.after is None else cursor(call, "messages", (page.after,))
    return Answer({"items": [message_view(one) for one in page.messages], "next_cursor": following})


@router.get(
    "/messages/{message_id}",
    name="get_message",
    requires=Role.VIEWER,
    answers=MessageDetailRead,
    path=MESSAGE,
    refuses=(NOT_FOUND,),
    response_description="The message.",
)
async def get_message(call: Call[None, MessageParams]) -> Answer:
    """Get one message with its history.

    The payload is given byte for byte, only with `include=payload`, and only to operators, as the evidence of verdicts is.
    """
    if call.query.include is not None:
        call.principal.require(Role.OPERATOR)
    command = Get(id_bytes(call.path["message_id"]), call.principal, payload=call.query.include is not None)
    detail = await _current(call, command)
    return Answer(detail_view(detail, evidence=call.principal.may(Role.OPERATOR)))


async def _current(call: Call[Any, Any], command: Get) -> MessageDetail:
    """A message whose lease has ended is given up first, so that the reader sees what is true."""
    found: MessageDetail = await call.runtime.lane("outbox.get").submit(command)
    for _ in range(MOST_ROUNDS):
        message = found.message
        if message.state is not State.SENDING or message.due_at is None or message.due_at > call.runtime.clock.now():
            break
        await call.runtime.lane("outbox.abandon").submit(sweep.Batch())
        found = await call.runtime.lane("outbox.get").submit(command)
    return found


@router.post(
    "/messages/{message_id}/reconcile",
    name="reconcile_message",
    requires=Role.OPERATOR,
    answers=ReconciledRead,
    path=MESSAGE,
    refuses=(NOT_FOUND, STATE_CONFLICT, VERDICT_CONFLICT),
    response_description="The message after the verdict.",
)
async def reconcile_message(call: Call[ReconcileMessage]) -> Answer:
    """Give the verdict on a message that is `unknown`.

    The first verdict stands, and is audited with its evidence; the same again is answered as before (`replayed: true`), another
    with 409 `verdict_conflict`. `retry` sends it with a fresh budget.
    """
    body = call.body
    command = Reconcile(
        id=id_bytes(call.path["message_id"]),
        caller=caller_of(call),
        verdict=body.verdict,
        evidence=body.evidence,
        reference=body.provider_operation_id,
        reason=body.reason,
    )
    outcome = await call.runtime.lane("outbox.reconcile").submit(command, size=call.body_size)
    detail = await call.runtime.lane("outbox.get").submit(Get(command.id, call.principal))
    return Answer({**message_view(detail.message), "replayed": outcome.replayed})


@router.get(
    "/stats",
    name="get_outbox_stats",
    requires=Role.VIEWER,
    answers=OutboxStatsRead,
    response_description="The figures.",
)
async def get_outbox_stats(call: Call) -> Answer:
    """Count messages by destination and state, with the age of the oldest that can be claimed."""
    stats: Stats = await call.runtime.lane("outbox.stats").submit(call.principal)
    totals: Counter[str] = sum((one.counts for one in stats.destinations), Counter())
    return Answer(
        {
            "destinations": [
                {
                    "destination": one.destination,
                    "counts": _counts(one.counts),
                    "oldest_pending_age_seconds": one.oldest_pending_age_seconds,
                    "needs_operator": one.needs_operator,
                }
                for one in stats.destinations
            ],
            "totals": _counts(totals),
            "set_aside": stats.set_aside,
        }
    )


def _counts(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in STATE_NAMES}


@router.post("/requeue", name="requeue_messages", requires=Role.OPERATOR, answers=MessagesChangedRead)
async def requeue_messages(call: Call[RequeueMessages]) -> Answer:
    """Send dead messages after all: `dead` becomes `pending`, with a fresh budget of attempts. Audited."""
    body = call.body
    if body.destination is not None:
        call.principal.require_names([body.destination])
    command = control.Requeue(caller_of(call), body.limit, body.destination, body.type)
    return _changed(await call.runtime.lane("outbox.requeue").submit(command))


@router.post("/release-stale", name="release_stale_messages", requires=Role.OPERATOR, answers=MessagesChangedRead)
async def release_stale_messages(call: Call[ReleaseStaleMessages]) -> Answer:
    """Take messages from holders that have had them for too long.

    Those of idempotent destinations are `pending` again and have spent no attempt; the others become `unknown`. Audited.
    """
    command = control.ReleaseStale(caller_of(call), call.body.claimed_before_seconds, call.body.limit)
    return _changed(await call.runtime.lane("outbox.release_stale").submit(command))


@router.post("/purge", name="purge_messages", requires=Role.OPERATOR, answers=MessagesChangedRead)
async def purge_messages(call: Call[PurgeMessages]) -> Answer:
    """Forget ended messages, with their keys, before their retention is over. `unknown` is never purged. Audited."""
    body = call.body
    command = control.Purge(caller_of(call), State[body.state.name], body.older_than_seconds, body.limit)
    return _changed(await call.runtime.lane("outbox.purge_messages").submit(command))


def _changed(outcome: control.Changed) -> Answer:
    return Answer({"changed": outcome.changed, "unknown": outcome.unknown})
