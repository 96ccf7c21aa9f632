"""From validated bodies to commands: units become microseconds, keys become digests, identities are made."""

from __future__ import annotations

from typing import Any

from app.access import Caller
from app.clock import micros
from app.http.call import Call
from app.ids import id_bytes, new_id
from app.primitives.outbox.model.commands import Beat, Claim, NewMessage, Prepare, Settlement
from app.primitives.outbox.model.keys import fingerprint, key_digest
from app.primitives.outbox.model.settlements import make_settlement
from app.primitives.outbox.model.states import Outcome
from app.primitives.outbox.schemas.work import (
    ClaimMessages,
    HeartbeatMessage,
    PrepareMessage,
    RecordMessage,
    RejectMessage,
    ReleaseMessage,
    RetryMessage,
    SentMessage,
    SettleItem,
    UnknownMessage,
)


def caller_of(call: Call[Any, Any]) -> Caller:
    return Caller(call.principal, call.request_id, call.traceparent)


def new_message(body: RecordMessage) -> NewMessage:
    """The id is made here, before anything is tried: it is what the command is known by."""
    told: dict[str, Any] = {
        "schema_version": body.schema_version,
        "payload": body.payload,
        "occurred_at": body.occurred_at,
        "available_at": body.available_at,
        "ordering_key": body.ordering_key,
        "correlation_id": body.correlation_id,
        "target_reference": body.target_reference,
        "max_attempts": body.max_attempts,
        "prepare": None if body.prepare is None else prepare(body.prepare),
    }
    return NewMessage(
        id=new_id(),
        message_key=body.message_key,
        key_digest=key_digest(body.message_key),
        fingerprint=fingerprint(type_=body.type, destination=body.destination, **told),
        flow=(body.destination, body.type),
        **told,
    )


def prepare(body: PrepareMessage) -> Prepare:
    return Prepare(micros(body.decide_within_seconds), body.check_url)


def claim(body: ClaimMessages, caller: Caller) -> Claim:
    return Claim(
        destinations=tuple(dict.fromkeys(body.destinations)),
        types=tuple(dict.fromkeys(body.types or ())),
        worker=body.worker,
        limit=body.limit,
        lease=_micros(body.lease_seconds),
        caller=caller,
        claim_id=body.claim_id,
    )


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else micros(seconds)


def beat(message_id: str, body: HeartbeatMessage) -> Beat:
    return Beat(id_bytes(message_id), body.token, _micros(body.lease_seconds))


def settlement(item: SettleItem) -> Settlement:
    return make_settlement(
        id_bytes(item.id),
        item.token,
        item.outcome,
        reference=item.provider_operation_id,
        category=item.category,
        message=item.message,
        delay=item.retry_after_seconds if item.delay_seconds is None else item.delay_seconds,
        reason=item.reason,
    )


def sent(message_id: str, body: SentMessage) -> Settlement:
    return make_settlement(id_bytes(message_id), body.token, Outcome.SENT, reference=body.provider_operation_id)


def retried(message_id: str, body: RetryMessage) -> Settlement:
    return make_settlement(
        id_bytes(message_id),
        body.token,
        Outcome.RETRY,
        category=body.category,
        message=body.message,
        delay=body.retry_after_seconds,
    )


def rejected(message_id: str, body: RejectMessage) -> Settlement:
    return make_settlement(
        id_bytes(message_id), body.token, Outcome.REJECTED, category=body.category, message=body.message
    )


def unknown(message_id: str, body: UnknownMessage) -> Settlement:
    return make_settlement(
        id_bytes(message_id),
        body.token,
        Outcome.UNKNOWN,
        category=body.category,
        message=body.message,
        reference=body.provider_operation_id,
    )


def released(message_id: str, body: ReleaseMessage) -> Settlement:
    return make_settlement(
        id_bytes(message_id), body.token, Outcome.RELEASED, reason=body.reason, delay=body.delay_seconds
    )
