"""Secrets of destinations, sealed where they are stored: what a change leaves of them, and how they are opened."""

from __future__ import annotations

from typing import Any

import msgspec

from app.db.tx import Tx
from app.errors import STATE_CONFLICT, VALIDATION_FAILED, FieldError, Refusal
from app.outgoing.vault import EncryptionKeyLost, NoEncryptionKey, SealBroken, Vault
from app.primitives.outbox.model.destinations import Secrets

_encode = msgspec.json.Encoder().encode
UNREADABLE = (NoEncryptionKey, EncryptionKeyLost, SealBroken)


def context_of(name: str) -> str:
    """What a destination's secrets are bound to."""
    return f"destination:{name}"


def opened(vault: Vault, name: str, sealed: bytes | None) -> Secrets:
    """Raises one of `UNREADABLE`."""
    if sealed is None:
        return Secrets()
    return msgspec.json.decode(vault.open(bytes(sealed), context_of(name)), type=Secrets)


def changed(
    tx: Tx, row: Any, name: str, headers: dict[str, str], secret: str | None, overlap: int
) -> tuple[Secrets, Secrets] | Refusal:
    """What is stored, and what a destination's secrets are to be. What cannot be read is replaced, if all of it is sent."""
    vault: Vault = tx.host.state("vault")
    sealed = None if row is None else row.sealed
    try:
        before = opened(vault, name, sealed)
    except UNREADABLE as fault:
        if secret is None:
            why = f"The signing secret that is stored cannot be read, and none was sent. {fault}"
            return Refusal(STATE_CONFLICT, why, extra={"state": "unreadable"})
        before = Secrets()
    return before, before.changed(headers, secret, overlap, tx.now)


def sealed(tx: Tx, name: str, secrets: Secrets) -> bytes | Refusal | None:
    """For storage; None if there is nothing to keep."""
    if secrets == Secrets():
        return None
    vault: Vault = tx.host.state("vault")
    try:
        return vault.seal(_encode(secrets), context_of(name))
    except NoEncryptionKey as fault:
        field = "signing_secret" if secrets.signing else "headers"
        errors = (FieldError(f"#/delivery/{field}", "cannot be stored: no encryption key is set"),)
        return Refusal(VALIDATION_FAILED, str(fault), errors=errors)
