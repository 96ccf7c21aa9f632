"""Who calls: `Authorization: Bearer tnr_<id>_<secret>` against this process's copy of all API keys.

The copy (`Directory`) is renewed by a loop, and at once when an id is unknown, so a request is judged without the database.
When the database is away the last copy counts for `STALE_AFTER_SECONDS`, then every call is refused with 503: a revocation
that this process cannot see must not be outlived for long. `app.primitives.keys` fills it; here it is only read.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from starlette.types import Scope

from app.access import ANONYMOUS, Principal
from app.clock import MICROS, steady_micros
from app.errors import DATABASE_UNAVAILABLE, UNAUTHENTICATED, Refusal, StartupProblem
from app.http.bodies import header

LATE_AFTER_SECONDS = 2.5
STALE_AFTER_SECONDS = 60
LEAST_BETWEEN_REFRESHES = MICROS // 2
KEY = re.compile(r"tnr_([0-9A-Za-z]{12})_[0-9A-Za-z]{49,}")
_NO_DIGEST = bytes(32)
# what proxies add, beside `x-forwarded-…`; one that adds nothing cannot be seen
_FORWARDED = frozenset({
    b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip", b"x-envoy-external-address",
})  # fmt: skip
_FOREIGN = frozenset({b"cross-site", b"same-site"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One API key as the directory knows it. `expires_at` in microseconds; `revoked` keys stay listed, and are refused."""

    principal: Principal
    digest: bytes
    expires_at: int | None
    revoked: bool


class Directory:
    """This process's copy of all API keys.

    `refresh` reads them again (set by the keys primitive).
    """

    def __init__(self) -> None:
        self.refresh: Callable[[], Awaitable[None]] | None = None
        self._used: dict[str, int] = {}
        self._written: dict[str, int] = {}
        self._entries: dict[str, Entry] = {}
        self._open = False
        self._loaded: int | None = None
        self._tried = -LEAST_BETWEEN_REFRESHES
        self._renewal: asyncio.Task[None] | None = None

    def replace(self, entries: Iterable[Entry]) -> None:
        """Take a fresh copy. Without a single row, loopback callers need no key; a revoked key is a row."""
        self._entries = {entry.principal.key_id: entry for entry in entries}
        self._open = not self._entries
        self._loaded = steady_micros()

    @property
    def open(self) -> bool:
        """Whether no key was ever made."""
        return self._open

    def age_seconds(self) -> float | None:
        """How old the copy is; None before the first."""
        return None if self._loaded is None else (steady_micros() - self._loaded) / MICROS

    def require_fresh(self) -> None:
        if self._loaded is None or steady_micros() - self._loaded > STALE_AFTER_SECONDS * MICROS:
            raise Refusal(
                DATABASE_UNAVAILABLE, "API keys cannot be checked: the database is away.", retry_after_seconds=2
            )

    def find(self, key: str, key_id: str, now: int) -> Principal | None:
        """The principal of a key that is in force, in time that does not depend on which ids exist."""
        entry = self._entries.get(key_id)
        digest = hashlib.sha256(key.encode("ascii")).digest()
        fits = hmac.compare_digest(digest, _NO_DIGEST if entry is None else entry.digest)
        if entry is None or not fits or entry.revoked or (entry.expires_at is not None and entry.expires_at <= now):
            return None
        self._used[key_id] = now
        return entry.principal

    def take_used(self, least: int) -> dict[str, int]:
        """When keys were last used, for those whose last report is `least` microseconds older. What is taken is not given
        again, so that a report that fails is lost; the next use makes another.
        """
        due = {key: at for key, at in self._used.items() if at - self._written.get(key, -least) >= least}
        self._written.update(due)
        for key in due:
            del self._used[key]
        return due

    def in_force(self, principal: Principal, now: int) -> bool:
        """Whether a caller that was let in still may; for calls that wait."""
        if principal is ANONYMOUS:
            return self._open
        entry = self._entries.get(principal.key_id)
        return entry is not None and not entry.revoked and (entry.expires_at is None or entry.expires_at > now)

    async def look_again(self, key_id: str) -> bool:
        """Renew the copy because `key_id` is not in it; True if it is worth a second look. At most twice a second."""
        if key_id in self._entries:
            return False
        renewal = self._renew()
        if renewal is not None:
            await asyncio.shield(renewal)
        return key_id in self._entries

    async def keep_current(self) -> None:
        """Renew a copy that its loop has left behind (it backs off after faults); wait for it only if the copy is too old
        to be relied on. Raises: Refusal `database_unavailable` if it still is.
        """
        age = self.age_seconds()
        if age is not None and age < LATE_AFTER_SECONDS:
            return
        renewal = self._renew()
        if renewal is not None and (age is None or age > STALE_AFTER_SECONDS):
            await asyncio.shield(renewal)
        self.require_fresh()

    def _renew(self) -> asyncio.Task[None] | None:
        """The renewal under way, or a new one; None if the last began less than half a second ago."""
        if self._renewal is not None and not self._renewal.done():
            return self._renewal
        if self.refresh is None or steady_micros() - self._tried < LEAST_BETWEEN_REFRESHES:
            return None
        self._tried = steady_micros()
        self._renewal = asyncio.create_task(self._refreshed(self.refresh))
        return self._renewal

    @staticmethod
    async def _refreshed(refresh: Callable[[], Awaitable[None]]) -> None:
        with suppress(Refusal):  # the database is away: the copy stays as it is, and grows older
            await refresh()


async def identify(scope: Scope, runtime: Any) -> Principal:
    """The caller of this request. Raises: Refusal `unauthenticated`; `database_unavailable` when keys cannot be checked."""
    directory: Directory = runtime.state("keys")
    await directory.keep_current()
    value = header(scope, b"authorization")
    if value is None:
        principal = _without_key(scope, directory)
    else:
        scheme, _, text = value.decode("latin-1").partition(" ")
        shape = KEY.fullmatch(text.strip()) if scheme.lower() == "bearer" else None
        if shape is None:
            raise _refused("The header Authorization must be `Bearer <api key>`; API keys begin with `tnr_`.")
        key, key_id, now = shape[0], shape[1], runtime.clock.now()
        found = directory.find(key, key_id, now)
        if found is None and await directory.look_again(key_id):
            found = directory.find(key, key_id, now)
        if found is None:
            raise _refused("This API key is unknown, revoked or expired.")
        principal = found
    scope["state"]["principal"] = principal.key_id
    return principal


def _without_key(scope: Scope, directory: Directory) -> Principal:
    if not directory.open:
        raise _refused("Send an API key: `Authorization: Bearer <api key>`.")
    if not is_local(scope):
        raise _refused("Without any API key only direct calls from this machine are served; make a key.")
    return ANONYMOUS


def is_local(scope: Scope) -> bool:
    """Whether the peer is on this machine, speaks to it by a loopback name, and no proxy or foreign page is in between."""
    client = scope.get("client")
    if client is None or not is_loopback(client[0]):
        return False
    hosts: list[bytes] = []
    for name, value in scope["headers"]:
        if name in _FORWARDED or name.startswith(b"x-forwarded") or (name == b"sec-fetch-site" and value in _FOREIGN):
            return False
        if name == b"host":
            hosts.append(value)
    return len(hosts) == 1 and is_loopback(_host_name(hosts[0].decode("latin-1")))


def _host_name(host: str) -> str:
    """`Host` without its port: `127.0.0.1:8080`, `[::1]:8080`."""
    if host.startswith("["):
        inside, closed, _ = host[1:].partition("]")
        return inside if closed else ""
    return host.partition(":")[0]


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether an address or a host name means this machine."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def refuse_open_bind(settings: Any, *, has_keys: bool) -> None:
    """Raise StartupProblem for an address that others can reach while no API key was ever made."""
    if not has_keys and not is_loopback(settings.host):
        raise StartupProblem(
            f"TENURE_HOST is {settings.host}, which other machines can reach, but there is no API key; "
            "run `tenure keys create --direct`, or listen on 127.0.0.1"
        )


def _refused(detail: str) -> Refusal:
    return Refusal(UNAUTHENTICATED, detail)
