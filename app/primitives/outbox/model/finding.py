"""Finding out what became of an unknown message: what reconcilers are given, and what they say. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from app.access import Caller
from app.clock import to_text
from app.ids import id_text
from app.outgoing.replies import Fate, Reply
from app.primitives.outbox.model.records import Message
from app.primitives.outbox.model.states import State, Verdict
from app.record import record
from app.reservations import settlement_digest

UNDECIDED = "undecided"
MOST_REFERENCE = 255
_encode = msgspec.json.Encoder().encode


@record
class Doubtful:
    """An unknown message, as whoever finds out is given it. `asked`: which try it is, from 1; `budget`: how many there are."""

    message: Message
    payload: bytes
    traceparent: str | None
    unknown_since: int
    asked: int
    budget: int
    token: str
    fence: int
    expires_at: int


@record
class ClaimedDoubts:
    """What one claim was given. `replayed`: an earlier claim with this id was given it, and still holds it."""

    grants: tuple[Doubtful, ...] = ()
    replayed: bool = False


@record
class Finding:
    """What a reconciler says of a message that it holds. `verdict` None: it could not find out."""

    id: bytes
    token: str
    verdict: Verdict | None
    evidence: bytes
    digest: bytes
    caller: Caller
    reference: str | None = None
    reason: str | None = None


@record
class Found:
    """What became of the message. `next_at`: when somebody may look again; None: nobody does, or it is decided."""

    id: bytes
    state: State
    needs_operator: bool = False
    next_at: int | None = None
    replayed: bool = False


def finding_digest(verdict: Verdict | None, evidence: bytes, reference: str | None, reason: str | None) -> bytes:
    return settlement_digest(verdict.value if verdict else UNDECIDED, evidence, reference, reason)


# -- questions that the service asks: over HTTP, or by a job ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What is asked about one message. `fence` is that of the question's own reservation; `sealed`: the destination's secrets."""

    id: bytes
    fence: int
    destination: str
    url: str
    body: bytes
    sealed: bytes | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer says. `reached` False: nobody was asked. `evidence` is a JSON value."""

    verdict: Verdict | None
    evidence: bytes
    reference: str | None = None
    reached: bool = True


def body_of(message: Message, payload: bytes, unknown_since: int, asked: int) -> bytes:
    """What a reconciler of the destination is sent, as the body of a call or the payload of a job."""
    destination, type_ = message.flow
    return _encode(
        {
            "message": {
                "id": id_text(message.id),
                "message_key": message.message_key,
                "destination": destination,
                "type": type_,
                "schema_version": message.schema_version,
                "payload": msgspec.Raw(payload),
                "occurred_at": None if message.occurred_at is None else to_text(message.occurred_at),
                "ordering_key": message.ordering_key,
                "correlation_id": message.correlation_id,
                "target_reference": message.target_reference,
                "provider_operation_id": message.reference,
                "attempt": message.attempt,
                "category": message.category,
            },
            "unknown_since": to_text(unknown_since),
            "asked": asked,
        }
    )


def unasked(why: str) -> Reading:
    """Nobody was asked, for a reason of ours."""
    return Reading(None, _encode({"fault": why}), reached=False)


def read_reply(reply: Reply, url: str) -> Reading:
    """Only a whole 2xx answer `{"verdict": "sent" | "retry" | "dead" | "undecided", …}` says anything."""
    where: dict[str, Any] = {"url": url.partition("?")[0], "status": reply.status}
    if reply.fate is not Fate.ANSWERED or reply.status is None:
        told = _encode({**where, "fault": reply.reason})
        return Reading(None, told, reached=reply.fate is not Fate.NOT_SENT)
    if not (200 <= reply.status < 300 and reply.body_complete):
        return Reading(None, _encode({**where, "fault": "no whole answer with a status of 2xx"}))
    return read_result(reply.body, where)


def read_result(text: bytes | None, where: dict[str, Any]) -> Reading:
    """The same for a JSON text, such as a job's result. `where` stands in the evidence beside what was answered."""
    try:
        said: Any = msgspec.json.decode(text or b"null")
        word, reference = said["verdict"], said.get("provider_operation_id")
        verdict = None if word == UNDECIDED else Verdict(word)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
    ):
        return Reading(None, _encode({**where, "fault": "the answer names no verdict"}))
    known = isinstance(reference, str) and 0 < len(reference) <= MOST_REFERENCE and reference.isprintable()
    evidence = _encode({**where, "answer": msgspec.Raw(text or b"null")})
    return Reading(verdict, evidence, reference if known else None)
