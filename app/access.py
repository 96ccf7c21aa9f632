"""Who a caller is and what they may do: roles, name patterns, principals. A leaf; how keys are kept is elsewhere.

    producer   enqueue, record, check             viewer     read, without payloads
    worker     claim, renew, settle, locks, cache operator   viewer, and payloads, cancel, retry, reconcile, pause, purge …
    admin      every role, and keys

`operator` includes `viewer`; `admin` includes all. Neither `producer` nor `worker` includes any other. The role `*` of the
table that routes declare does not exist: a route is either open or names the roles of which one is enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from app.errors import FORBIDDEN, Refusal
from app.record import record


class Role(StrEnum):
    """What an API key is for. A key has at least one."""

    PRODUCER = "producer"
    WORKER = "worker"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


INCLUDES: dict[Role, frozenset[Role]] = {
    Role.PRODUCER: frozenset({Role.PRODUCER}),
    Role.WORKER: frozenset({Role.WORKER}),
    Role.VIEWER: frozenset({Role.VIEWER}),
    Role.OPERATOR: frozenset({Role.OPERATOR, Role.VIEWER}),
    Role.ADMIN: frozenset(Role),
}

PATTERN = r"^[A-Za-z0-9._:*-]+$"  # a name in which `*` stands for any number of characters


@lru_cache(maxsize=4096)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """One expression for all the patterns. Only `*` is special; runs of it are one, so that no input takes long."""
    parts = (".*".join(re.escape(piece) for piece in re.split(r"\*+", pattern)) for pattern in patterns)
    return re.compile("|".join(parts), re.DOTALL)


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller whose key was checked. `key_id` goes into logs and audit; `patterns` empty means every name."""

    key_id: str
    name: str
    roles: frozenset[Role]
    patterns: tuple[str, ...] = ()
    _granted: frozenset[Role] = field(init=False, repr=False, compare=False, default=frozenset())

    def __post_init__(self) -> None:
        granted = frozenset[Role]().union(*(INCLUDES[role] for role in self.roles))
        object.__setattr__(self, "_granted", granted)  # computed once; the instance is frozen

    def may(self, *roles: Role) -> bool:
        """Whether one of `roles` is granted, directly or by a role that includes it."""
        return not self._granted.isdisjoint(roles)

    def allows(self, name: str) -> bool:
        """Whether the name of a queue, destination, lock, namespace … is within this key's patterns. Case counts."""
        return not self.patterns or _compiled(self.patterns).fullmatch(name) is not None

    def require(self, *roles: Role) -> None:
        """Raise Refusal `forbidden` unless one of `roles` is granted."""
        if not self.may(*roles):
            needed = " or ".join(f"`{role}`" for role in sorted(roles))
            raise Refusal(
                FORBIDDEN, f"This call needs a key with the role {needed}.", extra={"required_roles": sorted(roles)}
            )

    def require_names(self, names: Sequence[str]) -> None:
        """Raise Refusal `forbidden` unless every name is within this key's patterns."""
        if self.patterns and not all(self.allows(name) for name in names):
            own = ", ".join(f"`{pattern}`" for pattern in self.patterns)
            raise Refusal(FORBIDDEN, f"This key is limited to the names {own}.", extra={"reason": "name_pattern"})


ANONYMOUS = Principal("anonymous", "anonymous", frozenset({Role.ADMIN}))
"""The caller on loopback while no API key was ever made: may do everything."""


@record
class Caller:
    """Who sent a request; stored with what it did."""

    principal: Principal
    request_id: str
    traceparent: str | None = None
    tracestate: str | None = None
