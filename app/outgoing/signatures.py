"""Standard Webhooks: a receiver can tell that a call is ours, whole and recent (github.com/standard-webhooks).

The signature is over `id.timestamp.body`, the very bytes that are sent. During a rotation every secret signs.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence

PREFIX = "whsec_"
_BYTES = range(24, 65)
_ID = re.compile(r"[!-\-/-~]{1,256}", re.ASCII)  # visible, and no dot: it divides the fields of what is signed


def new_secret() -> str:
    """A fresh secret of 32 bytes, as text to be shown once."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode("ascii")


def parse_secret(text: str) -> bytes:
    """The key in a secret `whsec_<base64>`. Raises ValueError with a sentence that does not repeat it."""
    if not text.startswith(PREFIX):
        raise ValueError(f"must begin with {PREFIX}")
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"must be standard base64, with its padding, after {PREFIX}") from None
    if len(key) not in _BYTES:
        raise ValueError("must hold 24 to 64 bytes in base64")
    return key


def sign(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers. `timestamp` is in seconds of the moment of sending, fresh for each try; `message_id` stays.

    Raises ValueError without a key, or for an id that is not visible ASCII without dots.
    """
    if not keys:
        raise ValueError("a signature needs a key")
    if not _ID.fullmatch(message_id):
        raise ValueError("a message id to be signed must be visible ASCII without dots")
    signed = f"{message_id}.{timestamp}.".encode("ascii") + body
    signatures = (base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode("ascii") for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
