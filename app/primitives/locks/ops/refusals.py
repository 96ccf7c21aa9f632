"""The refusals that several verbs of locks give."""

from __future__ import annotations

from app.clock import MICROS, to_text
from app.errors import LOCKED, Refusal

MOST_SECONDS = 30  # holders may let go long before their leases end


def locked(now: int, owner: str | None, until: int | None) -> Refusal:
    """Another has it until then; or nobody has, and it is another's turn."""
    if until is None:
        detail = "The lock is free, but others wait for it and come first. Wait in line, with `wait_seconds`."
        return Refusal(LOCKED, detail, extra={"owner": None, "expires_at": None}, retry_after_seconds=1)
    seconds = min(MOST_SECONDS, max(1, -(-(until - now) // MICROS)))
    return Refusal(
        LOCKED,
        "The lock is held by another. Wait in line, with `wait_seconds`, or come again.",
        extra={"owner": owner, "expires_at": to_text(until)},
        retry_after_seconds=seconds,
    )
