"""What an API key is made of. Pure: making, checking and taking apart."""

from __future__ import annotations

import hashlib
import secrets
import zlib
from dataclasses import dataclass, field

from app.access import Principal, Role

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_CHARS = 12
SECRET_CHARS = 43  # of 62: 256 bits
CHECK_CHARS = 6


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made: its id, the digest that is stored, and the text that is shown once."""

    id: str
    digest: bytes
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is stored. Moments in microseconds."""

    id: str
    digest: bytes = field(repr=False)
    name: str
    roles: tuple[Role, ...]
    patterns: tuple[str, ...]
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None

    def principal(self) -> Principal:
        return Principal(self.id, self.name, frozenset(self.roles), self.patterns)


@dataclass(frozen=True, slots=True)
class Create:
    """Make a key. The key itself was made before the first try; the text never gets near the database."""

    id: str
    digest: bytes = field(repr=False)
    name: str
    roles: tuple[Role, ...]
    patterns: tuple[str, ...]
    expires_at: int | None
    by: Principal
    request_id: str | None
    audit_id: bytes


@dataclass(frozen=True, slots=True)
class Revoke:
    """Revoke a key."""

    id: str
    by: Principal
    request_id: str | None
    audit_id: bytes


@dataclass(frozen=True, slots=True)
class Revoked:
    """The key, and whether it had been revoked before."""

    key: ApiKey
    replayed: bool


def mint() -> NewKey:
    """A fresh key: `tnr_<id>_<secret><check>`. The check (CRC-32) lets scanners for leaked keys tell real ones offline."""
    key_id, secret = _random(ID_CHARS), _random(SECRET_CHARS)
    text = f"tnr_{key_id}_{secret}{check(key_id, secret)}"
    return NewKey(key_id, digest(text), text)


def digest(text: str) -> bytes:
    """What is stored of a key. The secret is 256 random bits, so one SHA-256 is enough."""
    return hashlib.sha256(text.encode("ascii")).digest()


def check(key_id: str, secret: str) -> str:
    """Six base62 digits of the CRC-32 over `<id>_<secret>`."""
    number = zlib.crc32(f"{key_id}_{secret}".encode("ascii"))
    digits = ""
    for _ in range(CHECK_CHARS):
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits


def _random(count: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(count))
