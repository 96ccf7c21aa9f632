"""What a Reply means for the message that was delivered by it. Pure.

| what happened                                | idempotent | otherwise |
| -------------------------------------------- | ---------- | --------- |
| 2xx                                          | sent       | sent      |
| NOT_SENT                                     | retry      | retry     |
| 408, 425, 429; 503 with a valid Retry-After  | retry      | retry     |
| other 4xx; 301, 307, 308                     | rejected   | rejected  |
| MAYBE_SENT; other 5xx, 503 without it;       | retry      | unknown   |
|   other 3xx, 1xx and numbers without meaning |            |           |

A redirect is never followed. 301, 307 and 308 say that the request belongs elsewhere and was not carried out. 302 and 303
are how many frameworks answer after they *have* carried out a POST, so they prove nothing either way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum

from app.outgoing.replies import Fate, Reply

MAX_RETRY_AFTER_SECONDS = 86_400.0
_REPEAT = {408: "request_timeout", 425: "too_early", 429: "throttled"}
_ELSEWHERE = frozenset({301, 307, 308})


class Outcome(StrEnum):
    SENT = "sent"
    RETRY = "retry"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`category` is stable: `accepted`, a reason of `Reply`, `request_timeout`, `too_early`, `throttled`, `unavailable`,
    `redirected`, or `http_<status>`. `retry_after_seconds` is what the destination asked for, within a day. `detail` is for
    people, and holds nothing that the destination wrote.
    """

    outcome: Outcome
    category: str
    detail: str
    retry_after_seconds: float | None = None


def judge(reply: Reply, *, idempotent: bool) -> Verdict:
    """`idempotent`: the destination drops what it has seen before, so repeating is safe whatever became of the first."""
    doubt = Outcome.RETRY if idempotent else Outcome.UNKNOWN
    if reply.fate is Fate.NOT_SENT:
        return Verdict(Outcome.RETRY, reply.reason, reply.detail)
    if reply.fate is Fate.MAYBE_SENT or reply.status is None:
        begun = f" Its status was {reply.status}." if reply.status is not None else ""
        return Verdict(doubt, reply.reason or "failed", reply.detail + begun)
    status = reply.status
    wait = retry_after_seconds(reply.headers, reply.received_at)
    detail = f"The destination answered {status}."
    if 200 <= status <= 299:
        return Verdict(Outcome.SENT, "accepted", detail)
    if status in _REPEAT:
        return Verdict(Outcome.RETRY, _REPEAT[status], detail, wait)
    if status == 503 and wait is not None:
        return Verdict(Outcome.RETRY, "unavailable", detail, wait)
    if status in _ELSEWHERE:
        return Verdict(Outcome.REJECTED, "redirected", f"{detail} Redirects are not followed: mend the URL.")
    if 400 <= status <= 499:
        return Verdict(Outcome.REJECTED, f"http_{status}", detail)
    return Verdict(doubt, f"http_{status}", detail, wait if idempotent else None)


def retry_after_seconds(headers: Mapping[str, str], received_at: float) -> float | None:
    """Retry-After in seconds from the answer on, from 0 to a day; None without one, or with one that has no meaning.

    A date is measured against the answer's own Date: whose clock is wrong does not matter then.
    """
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        return min(float(text), MAX_RETRY_AFTER_SECONDS)
    until = _http_date(text)
    if until is None:
        return None
    answered = _http_date(headers.get("date", ""))
    return min(max(until - (received_at if answered is None else answered), 0.0), MAX_RETRY_AFTER_SECONDS)


def _http_date(text: str) -> float | None:
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
