"""Fault 24: one tenant's flood in a preferred queue must not starve another's: whoever is passed over gets a turn in time."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from app.primitives.jobs.turns import MOST_PASSED_OVER, Turns
from tests.primitives.jobs.driving import Jobs, done, new_job

FLOOD = 3000


def flood(jobs: Jobs, queue: str, count: int, **fields: int) -> None:
    for start in range(0, count, 1000):
        jobs.enqueue_all(*(new_job(queue, **fields) for _ in range(min(1000, count - start))))


def claims_until_served(jobs: Jobs, *queues: str, wanted: str, limit: int = 1) -> int:
    """How many claims it takes until one brings work of the `wanted` queue."""
    for count in range(1, 200):
        if any(grant.flow[0] == wanted for grant in jobs.claim(*queues, limit=limit)):
            return count
    raise AssertionError(f"{wanted} starves")


def test_a_tenant_beside_a_flood_is_served_within_a_bounded_number_of_claims(jobs: Jobs) -> None:
    flood(jobs, "flood", FLOOD)
    jobs.enqueue("small")
    assert claims_until_served(jobs, "flood", "small", wanted="small") == MOST_PASSED_OVER + 1


def test_the_bound_holds_for_claims_of_many_jobs_and_costs_each_but_one_of_them(jobs: Jobs) -> None:
    flood(jobs, "flood", FLOOD)
    flood(jobs, "small", 5)
    for _ in range(MOST_PASSED_OVER):
        assert {grant.flow[0] for grant in jobs.claim("flood", "small", limit=20)} == {"flood"}
    queues = [grant.flow[0] for grant in jobs.claim("flood", "small", limit=20)]
    assert queues.count("small") == 1
    assert len(queues) == 20


def test_up_to_the_bound_the_order_of_preference_is_kept_exactly(jobs: Jobs) -> None:
    flood(jobs, "first", 8)
    flood(jobs, "second", 8)
    assert [jobs.take("first", "second").flow[0] for _ in range(16)] == ["first"] * 8 + ["second"] * 8


def test_three_queues_take_turns_behind_a_flood(jobs: Jobs) -> None:
    flood(jobs, "flood", 200)
    flood(jobs, "b", 100)
    flood(jobs, "c", 100)
    served = [jobs.take("flood", "b", "c").flow[0] for _ in range(3 * (MOST_PASSED_OVER + 2))]
    assert served.count("b") >= 2
    assert served.count("c") >= 2
    assert served.count("flood") > len(served) / 2


def test_the_count_begins_anew_when_the_queue_was_served_by_somebody_else(jobs: Jobs) -> None:
    flood(jobs, "flood", 100)
    flood(jobs, "small", 3)
    for _ in range(MOST_PASSED_OVER - 1):
        jobs.take("flood", "small")
    jobs.take("small")  # a claim of one queue is no matter of turns, but its next look at both is
    jobs.take("small", "flood")
    assert claims_until_served(jobs, "flood", "small", wanted="small") == MOST_PASSED_OVER + 1


def test_a_queue_that_ran_dry_is_owed_nothing(jobs: Jobs) -> None:
    flood(jobs, "flood", 100)
    jobs.enqueue("small")
    for _ in range(MOST_PASSED_OVER):
        jobs.take("flood", "small")
    jobs.settle(done(jobs.take("small")))
    jobs.take("flood", "small")  # sees that there is nothing
    jobs.enqueue("small")
    assert claims_until_served(jobs, "flood", "small", wanted="small") == MOST_PASSED_OVER + 1


def test_types_of_one_queue_go_by_age_however_many_one_of_them_has(jobs: Jobs) -> None:
    flood(jobs, "q", 20, version=1)
    jobs.move(1)
    jobs.enqueue("q", version=2)
    jobs.move(1)
    flood(jobs, "q", 20, version=1)
    assert [grant.flow[2] for grant in jobs.claim("q", limit=41)] == [1] * 20 + [2] + [1] * 20


def test_each_replica_keeps_the_bound(jobs: Jobs, replica: Callable[[], Jobs]) -> None:
    other = replica()
    flood(jobs, "flood", 200)
    jobs.enqueue("small")
    served: list[str] = []
    while "small" not in served:
        served += (one.take("flood", "small").flow[0] for one in (jobs, other))
    assert len(served) <= 2 * (MOST_PASSED_OVER + 1)


@given(st.lists(st.sets(st.integers(1, 4)), min_size=200, max_size=200))
def test_nobody_is_passed_over_more_often_than_the_bound(others_dry: list[set[int]]) -> None:
    """Flow 0 is served at each claim unless one is due; the other flows have work but when they are dry."""
    turns, passed = Turns(), dict.fromkeys(range(1, 5), 0)
    for dry in others_dry:
        busy = passed.keys() - dry
        due = sorted(turns.due(range(5)) & busy)[:1]
        served = {*due, *dry} if due else {0, *dry}
        turns.tell(busy - served, served)
        for flow_id in passed:
            passed[flow_id] = 0 if flow_id in served else passed[flow_id] + 1
            assert passed[flow_id] <= MOST_PASSED_OVER + 4  # as many as there are to take turns
