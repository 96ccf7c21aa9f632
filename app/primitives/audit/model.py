"""What an audit entry is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import uuid_utils

from app.access import Principal


def new_id() -> bytes:
    return uuid_utils.uuid7().bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One deed. Made with the command, so that a command that runs again writes the same entry.

    `action` is `<primitive>.<verb>`, `kind` and `target` name the thing, `details` are plain JSON values: no secrets, no
    payloads. `request_id` ties it to the logs.
    """

    by: Principal
    action: str
    kind: str
    target: str
    reason: str | None = None
    request_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    id: bytes = field(default_factory=new_id)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which entries to list; None does not filter. `before` is the id of the last entry of the page before."""

    limit: int
    before: bytes | None = None
    actor: str | None = None
    action: str | None = None
    kind: str | None = None
    target: str | None = None
    since: int | None = None
    until: int | None = None
