"""Secrets of destinations, encrypted where they are stored: AES-256-GCM under TENURE_ENCRYPTION_KEYS.

A sealed secret names its key by a digest and is bound to its context (the row that it belongs to), so that a copy in
another row does not open. The first key seals, each opens: put a new one first, seal all anew, then drop the old one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Iterable
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.errors import StartupProblem
from app.settings import Settings

KEY_BYTES = 32
_VERSION = b"\x01"
_NAME_BYTES = 8
_NONCE_BYTES = 12  # random: safe for 2^32 secrets under one key
_HEAD = len(_VERSION) + _NAME_BYTES + _NONCE_BYTES


class NoEncryptionKey(Exception):
    """Nothing can be sealed or opened: no key is set."""

    def __init__(self) -> None:
        super().__init__(f"Set TENURE_ENCRYPTION_KEYS first: {HOW}.")


class EncryptionKeyLost(Exception):
    """It was sealed under a key that is no longer set."""

    def __init__(self) -> None:
        super().__init__("It was sealed under a key that TENURE_ENCRYPTION_KEYS no longer holds; put that key back.")


class SealBroken(Exception):
    """It is damaged, or was sealed for another context."""

    def __init__(self) -> None:
        super().__init__("It was changed, or sealed for something else; enter the secret again.")


HOW = "32 random bytes in base64, such as `openssl rand -base64 32` gives"


class Vault:
    """Seals and opens. `context` says what the secret is for, such as `destination:billing:signing`."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._ciphers = {_name_of(key): AESGCM(key) for key in keys}  # the first one seals

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Raises StartupProblem with one line if a key is malformed or stands there twice."""
        keys: list[bytes] = []
        for number, key in enumerate(settings.encryption_keys, 1):
            try:
                keys.append(parse_key(key.get_secret_value()))
            except ValueError as wrong:
                raise StartupProblem(
                    f"setting TENURE_ENCRYPTION_KEYS is wrong: key {number} {wrong}", exit_code=2
                ) from None
        if len(set(keys)) != len(keys):
            raise StartupProblem("setting TENURE_ENCRYPTION_KEYS is wrong: a key stands there twice", exit_code=2)
        return cls(keys)

    @property
    def usable(self) -> bool:
        return bool(self._ciphers)

    def seal(self, secret: bytes, context: str) -> bytes:
        """Encrypt for storage. Raises NoEncryptionKey."""
        if not self._ciphers:
            raise NoEncryptionKey
        name, cipher = next(iter(self._ciphers.items()))
        nonce = secrets.token_bytes(_NONCE_BYTES)
        head = _VERSION + name + nonce
        return head + cipher.encrypt(nonce, secret, head + context.encode())

    def open(self, sealed: bytes, context: str) -> bytes:
        """What was sealed for this context. Raises NoEncryptionKey, EncryptionKeyLost or SealBroken."""
        if not self._ciphers:
            raise NoEncryptionKey
        if len(sealed) < _HEAD or not sealed.startswith(_VERSION):
            raise SealBroken
        cipher = self._ciphers.get(sealed[1 : 1 + _NAME_BYTES])
        if cipher is None:
            raise EncryptionKeyLost
        head = sealed[:_HEAD]
        try:
            return cipher.decrypt(head[-_NONCE_BYTES:], sealed[_HEAD:], head + context.encode())
        except InvalidTag:
            raise SealBroken from None

    def sealed_by_first(self, sealed: bytes) -> bool:
        """Whether the key that seals today sealed it; if not, a rotation has yet to seal it anew."""
        return sealed[1 : 1 + _NAME_BYTES] == next(iter(self._ciphers), None)


def new_key() -> str:
    """A fresh key, as text for the setting."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode("ascii")


def parse_key(text: str) -> bytes:
    """The key in a text. Raises ValueError with words that do not repeat it."""
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"is not {HOW}")
    return key


def _name_of(key: bytes) -> bytes:
    """A key's name beside what it sealed: tells nothing of a random key."""
    return hashlib.sha256(b"tenure encryption key\x00" + key).digest()[:_NAME_BYTES]
