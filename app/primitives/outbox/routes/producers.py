"""Routes of producers: record, one or many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.access import Role
from app.errors import IDEMPOTENCY_CONFLICT, NOT_FOUND, STATE_CONFLICT, VALIDATION_FAILED, FieldError, Refusal
from app.http.call import Answer, Call
from app.http.problem import problem_of
from app.http.routing import thin_router
from app.ids import id_bytes, new_id
from app.jsontext import IdText
from app.outgoing.urls import problem_with
from app.primitives.outbox.model.commands import Decide, Decided, NewMessage, Record, Recorded
from app.primitives.outbox.model.states import Decision
from app.primitives.outbox.routes import commands
from app.primitives.outbox.schemas.views import DecidedMessage, message_view
from app.primitives.outbox.schemas.work import RecordBatch, RecordedMessage, RecordMessage, RecordResults

router = thin_router("/v1/outbox/messages", tags=["outbox"])

DECIDES = (Role.PRODUCER, Role.OPERATOR)
DECIDED: dict[str, Any] = {
    "answers": DecidedMessage,
    "path": {"message_id": IdText},
    "refuses": (NOT_FOUND, STATE_CONFLICT),
    "response_description": "The message after the decision.",
}


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
    set. A producer that shares the database may instead INSERT into the table `outbox` in its own transaction; one that does
    not sends `prepare`, commits, and then confirms or aborts.
    """
    call.principal.require_names([call.body.destination])
    if (refusal := _uncallable(call, call.body)) is not None:
        raise refusal
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
    refused = {index: refusal for index, body in enumerate(bodies) if (refusal := _uncallable(call, body)) is not None}
    news = [commands.new_message(body) for index, body in enumerate(bodies) if index not in refused]
    recorded = iter(await _record(call, news) if news else ())
    outcomes = [refused[index] if index in refused else next(recorded) for index in range(len(bodies))]
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


async def _record(call: Call[RecordBatch], news: list[NewMessage]) -> list[Recorded | Refusal]:
    command = Record(tuple(news), commands.caller_of(call))
    outcomes: list[Recorded | Refusal] = await call.runtime.lane("outbox.record").submit(
        command, weight=len(news), size=call.body_size
    )
    return outcomes


def _uncallable(call: Call[Any, Any], body: RecordMessage) -> Refusal | None:
    """An address that may not be called stands in the check's URL itself; what a name leads to is judged at each call."""
    url = None if body.prepare is None else body.prepare.check_url
    fault = None if url is None else problem_with(url, call.runtime.state("outgoing").targets)
    if fault is None:
        return None
    error = FieldError("#/prepare/check_url", fault)
    return Refusal(VALIDATION_FAILED, "The URL to check at cannot be called.", errors=(error,))


@router.post("/{message_id}/confirm", name="confirm_message", requires=DECIDES, **DECIDED)
async def confirm_message(call: Call) -> Answer:
    """Confirm a prepared message: its producer has committed, and it is to be sent.

    It takes its place behind what is recorded or confirmed before it with the same `ordering_key`. The first decision stands:
    the same again is answered as before (`replayed: true`), the other with 409 `state_conflict`, also after it was sent.
    """
    return await _decide(call, Decision.CONFIRMED)


@router.post("/{message_id}/abort", name="abort_message", requires=DECIDES, **DECIDED)
async def abort_message(call: Call) -> Answer:
    """Abort a prepared message: its producer has rolled back, and it is never sent.

    The first decision stands: the same again is answered as before (`replayed: true`), the other with 409 `state_conflict`.
    """
    return await _decide(call, Decision.ABORTED)


async def _decide(call: Call, decision: Decision) -> Answer:
    command = Decide(id_bytes(call.path["message_id"]), decision, commands.caller_of(call), new_id())
    outcome = await call.runtime.lane("outbox.decide").submit(command)
    return Answer(_recorded(outcome))


def _at(index: int, refusal: Refusal) -> Refusal:
    """The refusal of one message of a batch, with pointers that lead into the whole request."""
    errors = tuple(
        FieldError(f"#/messages/{index}{one.pointer.removeprefix('#')}", one.detail) for one in refusal.errors
    )
    return replace(refusal, errors=errors)


def _recorded(outcome: Recorded | Decided) -> dict[str, Any]:
    return {**message_view(outcome.message), "replayed": outcome.replayed}
