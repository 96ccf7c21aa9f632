"""What a producer wrote into the table `outbox` by SQL, judged by the same rules as a request over HTTP. Pure.

Nothing is coerced: a row is an intent as it stands, or it is set aside with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from app.clock import MAX_MOMENT, MICROS
from app.errors import Refusal
from app.ids import new_id
from app.jsontext import check_value
from app.primitives.outbox.model.commands import NewMessage
from app.primitives.outbox.model.keys import fingerprint, key_digest

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
_REFERENCE = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
# seconds and milliseconds since the epoch, taken for microseconds, would lie before this moment in 1973
EARLIEST = 10**14
LATEST_START = 3650 * 86_400 * MICROS
MOST_VERSION = 2_147_483_647


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a row is set aside; never holds what was written."""

    reason: str


def judge(
    row: Any, destinations: Collection[str], *, now: int, most_bytes: int, message_id: bytes | None = None
) -> NewMessage | Fault:
    """The intent that this row is, or why it is none. `row.payload` None: it is longer than `most_bytes`."""
    for name, fits, wanted in _RULES:
        if not fits(getattr(row, name)):
            return Fault(f"{name} {wanted}")
    if row.destination not in destinations:
        return Fault("destination must be one that was set")
    if row.available_at is not None and row.available_at > now + LATEST_START:
        return Fault("available_at lies more than ten years ahead; it is microseconds since 1970, UTC")
    payload = _payload(row.payload, most_bytes)
    if isinstance(payload, Fault):
        return payload
    told = {
        "schema_version": row.schema_version,
        "payload": payload,
        "occurred_at": row.occurred_at,
        "available_at": row.available_at,
        "ordering_key": row.ordering_key,
        "correlation_id": row.correlation_id,
        "target_reference": row.target_reference,
        "max_attempts": row.max_attempts,
    }
    return NewMessage(
        id=message_id or new_id(),
        message_key=row.message_key,
        key_digest=key_digest(row.message_key),
        fingerprint=fingerprint(type_=row.type, destination=row.destination, **told),
        flow=(row.destination, row.type),
        **told,
    )


def _payload(text: Any, most_bytes: int) -> bytes | Fault:
    if text is None:
        return Fault(f"payload must have at most {most_bytes} bytes")
    if not isinstance(text, str):
        return Fault("payload must be text")
    try:
        payload = text.strip(" \t\r\n").encode()
        if len(payload) > most_bytes:
            return Fault(f"payload must have at most {most_bytes} bytes")
        check_value(payload, "#/payload", 1)
    except UnicodeEncodeError:
        return Fault("payload must be UTF-8")
    except Refusal as refused:
        return Fault(f"payload {refused.errors[0].detail}" if refused.errors else "payload must be JSON")
    return payload


def _fits(pattern: re.Pattern[str], *, needed: bool) -> Callable[[Any], bool]:
    return lambda value: (
        not needed if value is None else isinstance(value, str) and pattern.fullmatch(value) is not None
    )


def _is_key(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return 1 <= len(value.encode()) <= 255
    except UnicodeEncodeError:
        return False


def _within(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and least <= value <= most


def _or_nothing(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


_A_NAME = "must be a name: 1 to 128 characters of A-Z a-z 0-9 . _ : -"
_A_KEY = "must have 1 to 255 bytes of UTF-8"
_A_REFERENCE = "must have 1 to 255 characters and no control characters"
_A_MOMENT = "must be microseconds since 1970, UTC"

_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("message_key", _is_key, _A_KEY),
    ("type", _fits(_NAME, needed=True), _A_NAME),
    ("destination", _fits(_NAME, needed=True), _A_NAME),
    ("schema_version", _within(1, MOST_VERSION), f"must be an integer from 1 to {MOST_VERSION}"),
    ("occurred_at", _or_nothing(_within(EARLIEST, MAX_MOMENT)), _A_MOMENT),
    ("available_at", _or_nothing(_within(EARLIEST, MAX_MOMENT)), _A_MOMENT),
    ("ordering_key", _or_nothing(_is_key), _A_KEY),
    ("correlation_id", _fits(_REFERENCE, needed=False), _A_REFERENCE),
    ("target_reference", _fits(_REFERENCE, needed=False), _A_REFERENCE),
    ("max_attempts", _or_nothing(_within(1, 1000)), "must be an integer from 1 to 1000"),
)
