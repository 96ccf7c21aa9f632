"""The pure part of jobs: states, backoff, durations as figures, what a claim may be given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.access import ANONYMOUS
from app.clock import micros
from app.primitives.jobs import model
from app.primitives.jobs.model import (
    ENDED,
    STATE_NAMES,
    WAITING,
    Caller,
    Claim,
    State,
    backoff,
    bucket_ceiling,
    duration_bucket,
    id_text,
    new_id,
)

PAUSES = (10.0, 60.0, 300.0, 900.0)
LONGEST_DURATION = 604_800_000_000
SMALL_INT = 32_767


def wanted(*queues: str, handlers: tuple[tuple[str, tuple[int, ...]], ...] = ()) -> Claim:
    return Claim(queues, handlers, "w", 1, 1, Caller(ANONYMOUS, "r"))


def test_the_numbers_of_states_never_change_their_meaning() -> None:
    assert {state.name: int(state) for state in State} == {
        "AVAILABLE": 0,
        "RUNNING": 1,
        "SCHEDULED": 2,
        "SUCCEEDED": 4,
        "DEAD": 5,
        "CANCELLED": 6,
        "UNKNOWN": 7,
        "BLOCKED": 8,
    }
    assert all(STATE_NAMES[state.text] is state for state in State)


def test_waiting_running_ended_and_unknown_are_all_there_is() -> None:
    assert set(WAITING) | set(ENDED) | {State.RUNNING, State.UNKNOWN} == set(State)
    assert not set(WAITING) & set(ENDED)


@pytest.mark.parametrize(("failures", "seconds"), [(0, 10), (1, 10), (2, 60), (3, 300), (4, 900), (5, 900), (999, 900)])
def test_backoff_escalates_and_its_last_pause_repeats(failures: int, seconds: float) -> None:
    assert backoff(PAUSES, failures, spread=0) == micros(seconds)
    assert backoff(PAUSES, failures, spread=1) == micros(seconds * 1.2)


@given(st.integers(0, 50))
def test_backoff_is_never_shorter_than_its_pause_and_at_most_a_fifth_longer(failures: int) -> None:
    least = backoff(PAUSES, failures, spread=0)
    assert least <= backoff(PAUSES, failures) <= least * 1.2


def test_what_failed_together_does_not_come_back_together() -> None:
    assert len({backoff(PAUSES, 4) for _ in range(50)}) > 40


@given(st.integers(0, LONGEST_DURATION))
def test_a_duration_lies_in_its_bucket_and_the_bucket_is_narrow(duration: int) -> None:
    figure = duration_bucket(duration)
    assert bucket_ceiling(figure) >= duration
    assert bucket_ceiling(figure) <= duration * 1.125 + 1
    assert figure > max(model.Figure)
    assert figure <= SMALL_INT


@given(st.integers(0, LONGEST_DURATION), st.integers(0, LONGEST_DURATION))
def test_longer_durations_never_lie_in_earlier_buckets(one: int, other: int) -> None:
    assert (duration_bucket(one) <= duration_bucket(other)) == (one <= other) or duration_bucket(
        one
    ) == duration_bucket(other)


def test_a_duration_below_nothing_counts_as_nothing() -> None:
    assert duration_bucket(-5) == duration_bucket(0)


def test_ids_grow_with_time_and_read_as_uuid_7() -> None:
    ids = [new_id() for _ in range(2_000)]
    assert ids == sorted(set(ids))
    assert id_text(ids[0])[14] == "7"


def test_a_claim_without_handlers_takes_anything_of_its_queues() -> None:
    assert wanted("a", "b").wants(("b", "any", 7))
    assert not wanted("a", "b").wants(("c", "any", 7))


def test_a_claim_with_handlers_takes_only_the_versions_that_it_named() -> None:
    claim = wanted("a", handlers=(("mail", (1, 2)), ("mail", (5,)), ("print", (1,))))
    assert [version for version in range(1, 7) if claim.wants(("a", "mail", version))] == [1, 2, 5]
    assert claim.wants(("a", "print", 1))
    assert not claim.wants(("a", "print", 2))
    assert not claim.wants(("a", "Mail", 1))
    assert not claim.wants(("b", "mail", 1))


def test_a_claim_is_known_by_its_claim_id_and_its_api_key() -> None:
    plain = wanted("a")
    assert plain.identity is None
    named = Claim(("a",), (), "w", 1, 1, Caller(ANONYMOUS, "r"), "x" * 16)
    assert named.identity == (ANONYMOUS.key_id, "x" * 16)
