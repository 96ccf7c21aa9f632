"""A message as the call that delivers it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from app.ids import id_text
from app.outgoing.cloudevents import Event, Mode, encode
from app.outgoing.headers import header_text
from app.outgoing.replies import Call
from app.outgoing.signatures import parse_secret, sign
from app.primitives.outbox.model.commands import Granted
from app.primitives.outbox.model.destinations import Delivery


def call_of(
    grant: Granted,
    delivery: Delivery,
    headers: dict[str, str],
    secrets: Sequence[str],
    *,
    source: str,
    mode: Mode,
    timeout_seconds: float,
    now_seconds: int,
) -> Call:
    """A POST of a CloudEvent whose id is the message's: the same for every attempt. `Idempotency-Key` is the message key, with
    what is not visible ASCII percent-encoded. The service's own headers stand over those of the destination.
    """
    fields, body = encode(event_of(grant, source), mode)
    signed = sign([parse_secret(one) for one in secrets], id_text(grant.id), now_seconds, body) if secrets else {}
    fields = {**headers, **fields, "idempotency-key": header_text(grant.message_key), **signed}
    if grant.traceparent is not None:
        fields["traceparent"] = grant.traceparent
    return Call("POST", delivery.url or "", fields, body, timeout_seconds)


def event_of(grant: Granted, source: str) -> Event:
    """The message as a CloudEvent; `partitionkey` and `traceparent` are the documented extensions of these names."""
    destination, type_ = grant.flow
    extensions: dict[str, str | int] = {
        "messagekey": grant.message_key,
        "destination": destination,
        "schemaversion": grant.schema_version,
    }
    optional = {
        "partitionkey": grant.ordering_key,
        "correlationid": grant.correlation_id,
        "traceparent": grant.traceparent,
    }
    extensions |= {name: value for name, value in optional.items() if value is not None}
    return Event(
        id=id_text(grant.id),
        source=source,
        type=type_,
        time=grant.occurred_at,
        data=grant.payload,
        subject=grant.target_reference,
        extensions=extensions,
    )
