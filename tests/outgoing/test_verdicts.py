"""What each reply means for its message: altarwed#609 (a failure taken for success), mailpulse#7 (a retry taken for doubt)."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.outgoing.replies import Fate, Reply
from app.outgoing.verdicts import MAX_RETRY_AFTER_SECONDS, Outcome, judge, retry_after_seconds

NOW = 1_770_000_000.0
HEADERS = {"retry-after": "30"}


def answered(status: int, headers: dict[str, str] | None = None) -> Reply:
    return Reply(Fate.ANSWERED, status=status, headers=headers or {}, body=b"canary", received_at=NOW)


SENT, RETRY, REJECTED, UNKNOWN = Outcome.SENT, Outcome.RETRY, Outcome.REJECTED, Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("statuses", "headers", "plain", "idempotent"),
    [
        (range(200, 300), {}, SENT, SENT),
        ([408, 425, 429], {}, RETRY, RETRY),
        ([408, 425, 429], HEADERS, RETRY, RETRY),
        ([503], HEADERS, RETRY, RETRY),
        ([503], {}, UNKNOWN, RETRY),
        ([503], {"retry-after": "soon"}, UNKNOWN, RETRY),
        ([503], {"retry-after": "-1"}, UNKNOWN, RETRY),
        ([503], {"retry-after": ""}, UNKNOWN, RETRY),
        ([s for s in range(400, 500) if s not in (408, 425, 429)], HEADERS, REJECTED, REJECTED),
        ([301, 307, 308], {}, REJECTED, REJECTED),
        ([s for s in range(300, 400) if s not in (301, 307, 308)], {}, UNKNOWN, RETRY),
        ([s for s in range(500, 600) if s != 503], HEADERS, UNKNOWN, RETRY),
        ([100, 101, 199, 600, 999], {}, UNKNOWN, RETRY),
    ],
)
def test_an_answer_is_judged_by_the_table(
    statuses: list[int], headers: dict[str, str], plain: Outcome, idempotent: Outcome
) -> None:
    for status in statuses:
        assert judge(answered(status, headers), idempotent=False).outcome is plain, status
        assert judge(answered(status, headers), idempotent=True).outcome is idempotent, status


@pytest.mark.parametrize("reason", ["dns", "connect", "tls", "refused_address", "pool_timeout", "cancelled"])
def test_what_was_never_sent_is_a_plain_retry_everywhere(reason: str) -> None:
    for idempotent in (True, False):
        verdict = judge(Reply(Fate.NOT_SENT, reason), idempotent=idempotent)
        assert (verdict.outcome, verdict.category) == (RETRY, reason)


@pytest.mark.parametrize("status", [None, 200, 404, 429])
def test_what_may_have_been_sent_is_unknown_unless_repeating_is_safe(status: int | None) -> None:
    reply = Reply(Fate.MAYBE_SENT, "reset", status=status)
    assert judge(reply, idempotent=False).outcome is UNKNOWN
    assert judge(reply, idempotent=True).outcome is RETRY
    assert judge(reply, idempotent=False).category == "reset"


@given(
    fate=st.sampled_from(Fate),
    status=st.none() | st.integers(0, 1200),
    headers=st.dictionaries(st.sampled_from(["retry-after", "date"]), st.text(max_size=40)),
    idempotent=st.booleans(),
)
def test_only_a_whole_2xx_is_sent_and_no_verdict_shows_what_the_destination_wrote(
    fate: Fate, status: int | None, headers: dict[str, str], idempotent: bool
) -> None:
    reply = Reply(fate, "reset" if fate is not Fate.ANSWERED else "", status, headers, b"canary")
    verdict = judge(reply, idempotent=idempotent)
    accepted = fate is Fate.ANSWERED and status is not None and 200 <= status < 300
    assert (verdict.outcome is SENT) is accepted
    assert not (idempotent and verdict.outcome is UNKNOWN)
    assert "canary" not in repr(verdict)
    assert verdict.category.replace("_", "").isalnum()
    assert verdict.category == verdict.category.lower()
    assert verdict.retry_after_seconds is None or 0 <= verdict.retry_after_seconds <= MAX_RETRY_AFTER_SECONDS


def at(moment: float) -> str:
    return formatdate(moment, usegmt=True)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "0"}, 0),
        ({"retry-after": " 120 "}, 120),
        ({"retry-after": "999999999999999999"}, MAX_RETRY_AFTER_SECONDS),
        ({"retry-after": at(NOW + 90)}, 90),
        ({"retry-after": at(NOW - 90)}, 0),
        ({"retry-after": at(NOW + 9e6)}, MAX_RETRY_AFTER_SECONDS),
        # a destination whose clock is an hour behind means what it says by that clock
        ({"retry-after": at(NOW - 3600 + 90), "date": at(NOW - 3600)}, 90),
        ({"retry-after": at(NOW + 90), "date": "yesterday"}, 90),
        ({}, None),
        ({"retry-after": "1.5"}, None),
        ({"retry-after": "+5"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "1, 2"}, None),
        ({"retry-after": "9" * 500}, None),
        ({"retry-after": "Mon, 99 Foo 2026 00:00:00 GMT"}, None),
    ],
)
def test_retry_after_is_read_in_both_forms_and_bounded(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, NOW) == seconds


def test_the_wait_that_was_asked_for_is_handed_on() -> None:
    for status in (429, 503):
        assert judge(answered(status, HEADERS), idempotent=False).retry_after_seconds == 30
    assert judge(answered(500, HEADERS), idempotent=True).retry_after_seconds == 30
    assert judge(answered(500, HEADERS), idempotent=False).retry_after_seconds is None
