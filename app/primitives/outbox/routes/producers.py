"""Routes of producers: record, one or many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.access import Role
from app.errors import IDEMPOTENCY_CONFLICT, FieldError, Refusal
from app.http.call import Answer, Call
from app.http.problem import problem_of
from app.http.routing import thin_router
from app.primitives.outbox.model.commands import Record, Recorded
from app.primitives.outbox.routes import commands
from app.primitives.outbox.schemas.views import message_view
from app.primitives.outbox.schemas.work import RecordBatch, RecordedMessage, RecordMessage, RecordResults

router = thin_router("/v1/outbox/messages", tags=["outbox"])


@router.post(
    "",
    name="record_message",
    status_code=201,
    requires=Role.PRODUCER,
    answers=RecordedMessage,
    refuses=(IDEMPOTENCY_CONFLICT,),
    also={200: "The message that this key made before."},
    response_description="The message is on disk.",
)
async def record_message(call: Call[RecordMessage]) -> Answer:
    """Record an intent to send something.

    Answered once it is on disk. May be repeated: the same `message_key` with the same content gives the same message (200,
    `replayed: true`), also after it was sent; with other content 409 `idempotency_conflict`. The destination must have been
    set. A producer that shares the database may instead INSERT into the table `outbox` in its own transaction.
    """
    call.principal.require_names([call.body.destination])
    command = Record((commands.new_message(call.body),), commands.caller_of(call))
    (outcome,) = await call.runtime.lane("outbox.record").submit(command, size=call.body_size)
    if isinstance(outcome, Refusal):
        raise outcome
    return Answer(_recorded(outcome), status=200 if outcome.replayed else 201)


@router.post("/batch", name="record_messages", requires=Role.PRODUCER, answers=RecordResults)
async def record_messages(call: Call[RecordBatch]) -> Answer:
    """Record many intents in one commit.

    One result for each message, in the order sent. One that is refused (a used key, a destination that is not there) does not
    touch the others.
    """
    bodies = call.body.messages
    call.principal.require_names([body.destination for body in bodies])
    command = Record(tuple(commands.new_message(body) for body in bodies), commands.caller_of(call))
    outcomes = await call.runtime.lane("outbox.record").submit(command, weight=len(bodies), size=call.body_size)
    return Answer(
        {
            "results": [
                {
                    "status": outcome.http_status,
                    "message": None,
                    "problem": problem_of(_at(index, outcome), call.request_id),
                }
                if isinstance(outcome, Refusal)
                else {"status": 200 if outcome.replayed else 201, "message": _recorded(outcome), "problem": None}
                for index, outcome in enumerate(outcomes)
            ]
        }
    )


def _at(index: int, refusal: Refusal) -> Refusal:
    """The refusal of one message of a batch, with pointers that lead into the whole request."""
    errors = tuple(
        FieldError(f"#/messages/{index}{one.pointer.removeprefix('#')}", one.detail) for one in refusal.errors
    )
    return replace(refusal, errors=errors)


def _recorded(outcome: Recorded) -> dict[str, Any]:
    return {**message_view(outcome.message), "replayed": outcome.replayed}
