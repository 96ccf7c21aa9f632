"""The refusals that several verbs of jobs give."""

from __future__ import annotations

from app.errors import FORBIDDEN, RESERVATION_LOST, SETTLEMENT_CONFLICT, Refusal

WHY_LOST = {
    "expired": "The reservation ended before this call.",
    "superseded": "The job has been given to somebody else since.",
    "settled": "The attempt has been settled.",
    "cancelled": "The job was cancelled.",
    "unknown_token": "This is not a token of this job.",
}


def lost(reason: str, fence: int | None = None) -> Refusal:
    """`reservation_lost` with its reason; `current_fence` only where it tells the caller something true."""
    extra: dict[str, object] = {"reason": reason}
    if fence is not None:
        extra["current_fence"] = fence
    return Refusal(RESERVATION_LOST, f"{WHY_LOST[reason]} Stop the work; nothing was changed.", extra=extra)


def settled_otherwise() -> Refusal:
    return Refusal(SETTLEMENT_CONFLICT, "This reservation was settled with other content; the first settlement stands.")


def out_of_pattern() -> Refusal:
    return Refusal(FORBIDDEN, "This key's name patterns do not cover the queue.")
