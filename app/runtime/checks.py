"""What one health check found. Primitives make them, `/health` shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. A primitive's manifest gives `checks(runtime) -> list[Check]`, awaitable or not.

    `output` says what is wrong (or what was seen), for people; `value` and `unit` are the figure behind it.
    `subject` is the name that it is about (a queue …): a key that is limited to other names does not see it.
    """

    name: str
    status: Status
    value: float | None = None
    unit: str | None = None
    output: str | None = None
    subject: str | None = None
