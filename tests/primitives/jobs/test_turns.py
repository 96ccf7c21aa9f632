"""Fault 24: one tenant's flood in a preferred queue must not starve another's: whoever is passed over gets a turn in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event

from app.primitives.jobs.ops.flows import refresh_memory
from app.primitives.jobs.turns import MOST_PASSED_OVER, Turns, passed_over
from tests.primitives.jobs.driving import Jobs, done, good, new_job

FLOOD = 3000


def flood(jobs: Jobs, queue: str, count: int, **fields: Any) -> None:
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


def test_many_types_behind_a_preferred_queue_have_one_turn_together(jobs: Jobs) -> None:
    flood(jobs, "critical", 200)
    jobs.enqueue_all(*(new_job("bulk", f"type-{number}") for number in range(30)))
    served = [jobs.take("critical", "bulk").flow[0] for _ in range(2 * (MOST_PASSED_OVER + 1))]
    assert served == 2 * (["critical"] * MOST_PASSED_OVER + ["bulk"])


def test_a_turn_of_many_types_costs_a_claim_of_many_jobs_but_one_of_them(jobs: Jobs) -> None:
    flood(jobs, "critical", 500)
    jobs.enqueue_all(*(new_job("bulk", f"type-{number}") for number in range(30)))
    for _ in range(MOST_PASSED_OVER):
        jobs.claim("critical", "bulk", limit=20)
    queues = [grant.flow[0] for grant in jobs.claim("critical", "bulk", limit=20)]
    assert queues == ["bulk"] + ["critical"] * 19


def test_a_turn_goes_to_the_most_urgent_work_of_its_queue(jobs: Jobs) -> None:
    flood(jobs, "critical", 50)
    jobs.enqueue("bulk", "idle", priority=10)
    urgent = jobs.enqueue("bulk", "urgent", priority=-10)
    for _ in range(MOST_PASSED_OVER):
        jobs.take("critical", "bulk")
    assert jobs.take("critical", "bulk").id == urgent.id


def test_the_bound_holds_for_claims_that_share_one_transaction(jobs: Jobs) -> None:
    flood(jobs, "flood", 200)
    flood(jobs, "small", 9)
    outcomes = jobs.claim_all(*(jobs.wanted("flood", "small") for _ in range(3 * (MOST_PASSED_OVER + 1) + 5)))
    served = [good(one).grants[0].flow[0] for one in outcomes]
    assert served == 3 * (["flood"] * MOST_PASSED_OVER + ["small"]) + ["flood"] * 5
    assert claims_until_served(jobs, "flood", "small", wanted="small") == MOST_PASSED_OVER + 1 - 5


def test_a_worker_of_one_type_is_not_helped_by_another_that_drains_the_other_types(jobs: Jobs) -> None:
    flood(jobs, "flood", 100, type_="mine")
    jobs.enqueue_all(*(new_job("small", "other") for _ in range(40)), new_job("small", "mine"))
    mine = [("mine", (1,))]
    for _ in range(MOST_PASSED_OVER):
        assert jobs.take("flood", "small", handlers=mine).flow[0] == "flood"
        assert jobs.take("flood", "small", handlers=[("other", (1,))]).flow[0] == "small"
    assert jobs.take("flood", "small", handlers=mine).flow[0] == "small"


def test_a_claim_of_a_hundred_over_many_queues_takes_by_preference_and_a_turn_costs_no_statement(jobs: Jobs) -> None:
    names = [f"queue-{number:02}" for number in range(32)]
    for name in names:
        flood(jobs, name, 10)
    assert [grant.flow[0] for grant in jobs.claim(*names, limit=100)] == [
        name for name in names[:10] for _ in range(10)
    ]
    flood(jobs, names[0], 1700)
    statements: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    (engine,) = jobs.database.run(lambda tx, _: [tx.conn.engine], [None])
    numbers: set[int] = set()
    event.listen(engine, "before_cursor_execute", note)
    try:
        for count in range(MOST_PASSED_OVER):  # the first claim has passed over what is left once
            statements.clear()
            queues = [grant.flow[0] for grant in jobs.claim(*names, limit=100)]
            numbers.add(len(statements))
            turn = count == MOST_PASSED_OVER - 1
            assert queues == (names[10:] + names[:1] * 78 if turn else names[:1] * 100)
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert len(numbers) == 1


def test_a_flood_with_the_smaller_priority_number_goes_first_within_its_queue(jobs: Jobs) -> None:
    flood(jobs, "q", 40, type_="flood", priority=-1)
    jobs.enqueue("q", "other")
    assert [jobs.take("q").flow[1] for _ in range(41)] == ["flood"] * 40 + ["other"]


def test_the_bound_counts_from_when_this_process_has_learnt_of_anothers_new_queue(
    jobs: Jobs, replica: Callable[[], Jobs]
) -> None:
    flood(jobs, "flood", 100)
    replica().enqueue("small")
    jobs.take("flood", "small")
    jobs.database.read(refresh_memory, None)  # a loop does this every two seconds
    assert claims_until_served(jobs, "flood", "small", wanted="small") == MOST_PASSED_OVER + 1


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
    """Queue 0 never runs dry; each other queue has one flow, which has work but when it is dry. Claims of one job."""
    turns, waited = Turns(), dict.fromkeys(range(1, 5), 0)
    queues = [[flow_id] for flow_id in range(5)]
    for dry in others_dry:
        busy = {0, *waited} - dry
        taken = next((flow_id for flow_id in sorted(busy) if turns.due([flow_id])), 0)
        if all(count < MOST_PASSED_OVER for flow_id, count in waited.items() if flow_id in busy):
            assert taken == 0  # preference is exact below the bound
        turns.tell(*passed_over(queues, seen=busy, taken={taken}, full=True))
        for flow_id in waited:
            waited[flow_id] = 0 if flow_id == taken or flow_id in dry else waited[flow_id] + 1
            assert waited[flow_id] < MOST_PASSED_OVER + len(waited)


@given(
    st.lists(st.sets(st.integers(0, 11), max_size=4), min_size=2, max_size=5),
    st.sets(st.integers(0, 11)),
    st.sets(st.integers(0, 11)),
    st.booleans(),
)
def test_each_flow_of_a_claim_is_passed_over_or_begins_anew(
    drawn: list[set[int]], seen: set[int], took: set[int], full: bool
) -> None:
    queues = [flow_ids.difference(*drawn[:place]) for place, flow_ids in enumerate(drawn)]  # a flow has one queue
    passed, served = passed_over(queues, seen=seen, taken=seen & took, full=full)
    assert passed.isdisjoint(served)
    assert passed | served == set().union(*queues)
    for flow_ids in queues:
        owed = full and not flow_ids & seen & took
        assert passed & flow_ids == (flow_ids & seen if owed else set())
