"""Keys that the contract of a type takes from the payload, on every engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.errors import PAYLOAD_INVALID, Refusal
from app.primitives.jobs.model import Concurrency, Enqueued, State, Unique
from app.primitives.jobs.model.derived import NoKey, keyed, wanted
from app.primitives.jobs.model.terms import Terms
from tests.primitives.jobs.driving import Jobs, done, good, new_job
from tests.primitives.jobs.keyed import REPLACE, debounce, send, slot, try_to_send, unique
from tests.primitives.jobs.promising import promise

PAYLOADS: dict[str, Any] = {
    "absent": {},
    "null": {"site": None},
    "a boolean": {"site": True},
    "a fraction": {"site": 1.5},
    "an exponent": b'{"site": 1e2}',
    "an object": {"site": {"id": 1}},
    "empty": {"site": ""},
    "too long": {"site": "é" * 128},
    "a list": ["site"],
    "a scalar": 1,
    "a text": "site",
    "named twice": b'{"site": "a", "site": "b"}',
}


def payload(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def sent(jobs: Jobs, value: Any, **fields: Any) -> Enqueued:
    return send(jobs, payload=payload(value), **fields)


def test_many_events_for_one_thing_are_one_job_that_waits(jobs: Jobs) -> None:
    promise(jobs.database, unique_by="/site")
    first = sent(jobs, {"site": "a", "n": 1})
    again = sent(jobs, {"site": "a", "n": 2})
    other = sent(jobs, {"site": "A"})
    assert (again.deduplicated, again.job.id) == (True, first.job.id)
    assert not other.deduplicated, "case counts"


def test_an_event_during_the_run_makes_the_next_job(jobs: Jobs) -> None:
    """Or a change that the run has not seen would never be acted on."""
    promise(jobs.database, unique_by="/site")
    first = sent(jobs, {"site": "a"})
    running = jobs.take()
    second = sent(jobs, {"site": "a"})
    assert not second.deduplicated
    assert second.job.id != first.job.id
    assert sent(jobs, {"site": "a"}).job.id == second.job.id
    jobs.settle(done(running))
    assert jobs.take().id == second.job.id


def test_one_thing_is_worked_on_by_one_run_at_a_time_and_in_order(jobs: Jobs) -> None:
    promise(jobs.database, no_overlap_by="/site/id")
    first, second, other = (sent(jobs, {"site": {"id": site}}).job for site in (7, "7", 8))
    assert [job.state for job in (first, second, other)] == [State.AVAILABLE, State.BLOCKED, State.AVAILABLE]
    for grant in jobs.claim(limit=9):
        jobs.settle(done(grant))
    assert jobs.take().id == second.id, "7 and the text 7 are one thing"


def test_two_types_do_not_share_a_place_in_line(jobs: Jobs) -> None:
    for type_ in ("t", "u"):
        promise(jobs.database, type_, no_overlap_by="/site")
    assert [sent(jobs, {"site": "a"}, type_=type_).job.state for type_ in ("t", "u")] == [State.AVAILABLE] * 2


def test_what_an_enqueue_names_itself_stands() -> None:
    terms = Terms("t", 1, unique_by="/site")
    overlap = Terms("t", 1, no_overlap_by="/site")
    assert not wanted(terms, new_job(unique=unique("own", REPLACE)))
    assert not wanted(terms, new_job(debounce=debounce("own")))
    assert not wanted(overlap, new_job(concurrency=slot("own", 3)))
    assert wanted(terms, new_job(concurrency=slot("own")))
    assert wanted(overlap, new_job(unique=unique("own")))
    assert not wanted(Terms("t", 1), new_job())


def test_an_own_key_needs_nothing_of_the_payload(jobs: Jobs) -> None:
    promise(jobs.database, unique_by="/site")
    assert not sent(jobs, {}, unique=unique("own")).deduplicated
    assert sent(jobs, {"site": "own"}).deduplicated, "one namespace for each type"


@pytest.mark.parametrize("kind", PAYLOADS)
@pytest.mark.parametrize("field", ["unique_by", "no_overlap_by"])
def test_a_payload_without_a_usable_key_is_refused_and_leaves_nothing(jobs: Jobs, field: str, kind: str) -> None:
    promise(jobs.database, **{field: "/site"})
    refused = try_to_send(jobs, payload=payload(PAYLOADS[kind]))
    assert isinstance(refused, Refusal)
    assert refused.code is PAYLOAD_INVALID
    assert [error.pointer for error in refused.errors] == ["#/payload" if kind == "named twice" else "#/payload/site"]
    assert not jobs.claim()


def test_the_others_of_a_batch_come_in(jobs: Jobs) -> None:
    promise(jobs.database, unique_by="/site")
    outcomes = jobs.enqueue_all(*(new_job(payload=payload(one)) for one in ({"site": 1}, {}, {"site": 1}, {"site": 2})))
    assert isinstance(outcomes[1], Refusal)
    jobs_of = [good(outcomes[at]).job.id for at in (0, 2, 3)]
    assert jobs_of[0] == jobs_of[1] != jobs_of[2]


def test_a_repeated_enqueue_is_answered_by_its_idempotency_key_first(jobs: Jobs) -> None:
    again = {"key_digest": b"k" * 32, "fingerprint": b"f" * 32}
    first = sent(jobs, {"place": 1}, **again)
    promise(jobs.database, unique_by="/site")
    told = sent(jobs, {"place": 1}, **again)
    assert (told.replayed, told.job.id) == (True, first.job.id), "what was taken in is not judged anew"


@pytest.mark.parametrize(
    ("pointer", "value", "key"),
    [
        ("/a~1b/m~0n", {"a/b": {"m~n": "x"}}, b"x"),
        ("/list/1", {"list": ["x", "y"]}, b"y"),
        ("/list/0", {"list": [-12345678901234567890]}, b"-12345678901234567890"),
        ("/a", b'{"a": "\\u00e9\\ud83d\\ude00"}', "é😀".encode()),
        ("/a", {"a": "x" * 255}, b"x" * 255),
    ],
)
def test_a_pointer_leads_where_rfc_6901_says(pointer: str, value: Any, key: bytes) -> None:
    found = keyed(Terms("t", 1, unique_by=pointer), new_job(payload=payload(value))).unique
    assert isinstance(found, Unique)
    assert found.name == key


@pytest.mark.parametrize("pointer", ["/list/-", "/list/2", "/list/01", "/list/x", "/list/0/deeper", "/list/²", "/a/b"])
def test_a_pointer_into_nothing_is_no_key(pointer: str) -> None:
    with pytest.raises(NoKey) as fault:
        keyed(Terms("t", 1, unique_by=pointer), new_job(payload=b'{"list": ["x", "y"], "a": "text"}'))
    assert fault.value.error.pointer == f"#/payload{pointer}"


def test_a_key_in_line_is_that_of_the_type_and_not_too_long() -> None:
    found = keyed(Terms("t", 1, no_overlap_by="/a"), new_job(payload=b'{"a": 1}')).concurrency
    assert isinstance(found, Concurrency)
    assert (found.name, found.limit) == (b"t:1", 1)
    with pytest.raises(NoKey, match="too long"):
        keyed(Terms("t", 1, no_overlap_by="/a"), new_job(payload=payload({"a": "x" * 254})))


def test_a_payload_nested_too_deep_has_no_key() -> None:
    deep = b'{"a": ' * 5000 + b"1" + b"}" * 5000
    with pytest.raises(NoKey, match="nested too deep"):
        keyed(Terms("t", 1, unique_by="/a"), new_job(payload=deep))
