"""What keys are known by, and what a repeated recording is compared by. Pure."""

from __future__ import annotations

import hashlib

from app.primitives.outbox.model.commands import Prepare
from app.reservations import settlement_digest


def key_digest(message_key: str) -> bytes:
    """What a message key is known by; one namespace for the installation."""
    return hashlib.sha256(b"outbox message\0" + message_key.encode()).digest()


def line_digest(destination: str, ordering_key: str) -> bytes:
    """What an ordering key of a destination is known by. A destination has no NUL in it, so each part ends where it seems to."""
    return hashlib.sha256(b"outbox line\0" + destination.encode() + b"\0" + ordering_key.encode()).digest()


def fingerprint(
    *,
    type_: str,
    schema_version: int,
    destination: str,
    payload: bytes,
    occurred_at: int | None,
    available_at: int | None,
    ordering_key: str | None,
    correlation_id: str | None,
    target_reference: str | None,
    max_attempts: int | None,
    prepare: Prepare | None = None,
) -> bytes:
    """Over everything of an intent but its key, the payload as bytes. The same over HTTP and by SQL."""
    prepared = () if prepare is None else (prepare.decide_within, prepare.check_url)
    return settlement_digest(
        type_, schema_version, destination, payload, occurred_at, available_at, ordering_key, correlation_id,
        target_reference, max_attempts, *prepared,
    )  # fmt: skip
