"""The bound that a claim's look begins at saves a walk, and must never hide work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import event

from app.db.database import Database
from app.primitives.jobs.heads import LOWEST, Heads, Place
from tests.primitives.jobs.driving import Jobs, done, released


def test_nothing_is_known_of_a_flow_that_no_claim_has_seen() -> None:
    assert Heads().bound(1) == LOWEST


def see(heads: Heads, place: Place) -> None:
    """One claim's look at flow 1, which takes work from this place on."""
    heads.seen({1: place}, heads.look([1]))


def test_a_look_from_the_lowest_place_makes_a_bound_and_a_bounded_one_moves_it() -> None:
    heads = Heads()
    see(heads, (0, 10))
    assert heads.bound(1) == (0, 10)
    see(heads, (0, 25))
    assert heads.bound(1) == (0, 25)


def test_a_bounded_look_whose_bound_was_forgotten_makes_none() -> None:
    heads = Heads()
    see(heads, (0, 10))
    look = heads.look([1])
    heads.forget(1)
    heads.seen({1: (0, 25)}, look)
    assert heads.bound(1) == LOWEST


def test_work_below_the_bound_lowers_it_and_work_above_does_not() -> None:
    heads = Heads()
    see(heads, (0, 10))
    heads.lower(1, (5, 0))
    assert heads.bound(1) == (0, 10)
    heads.lower(1, (-5, 99))
    assert heads.bound(1) == (-5, 99)


def test_a_forgotten_bound_is_the_lowest_place_again() -> None:
    heads = Heads()
    see(heads, (0, 10))
    heads.forget(1)
    assert heads.bound(1) == LOWEST


@pytest.mark.parametrize("place", [(-5, 99), (0, 15)])
def test_a_claim_under_way_does_not_hide_work_that_became_available_meanwhile(place: Place) -> None:
    heads = Heads()
    see(heads, (0, 10))
    look = heads.look([1])
    heads.lower(1, place)  # an enqueue commits after the claim's look, before its commit
    heads.seen({1: (0, 25)}, look)
    assert heads.bound(1) == place


def test_an_unbounded_look_does_not_hide_work_that_came_back_meanwhile() -> None:
    heads = Heads()
    look = heads.look([1])
    heads.forget(1)  # a retry commits, anywhere
    heads.seen({1: (0, 25)}, look)
    assert heads.bound(1) == LOWEST


def test_looks_that_found_nothing_leave_nothing_behind(jobs: Jobs) -> None:
    jobs.enqueue()
    jobs.take()
    for _ in range(5):
        assert jobs.claim() == ()
    assert jobs.host.memory.heads == Heads(_bounds=jobs.host.memory.heads._bounds, _lock=jobs.host.memory.heads._lock)


def test_a_claim_begins_where_the_last_one_found_work(jobs: Jobs, database: Database) -> None:
    """Fault 8: an old snapshot keeps the entries of finished work in the index; a claim must not walk over them."""
    for _ in range(6):
        jobs.enqueue()
    first = jobs.take("q")
    flow_id = jobs.host.state("jobs").flow_id(("q", "t", 1))
    assert flow_id is not None
    bound = jobs.host.state("jobs").heads.bound(flow_id)
    assert bound == (0, jobs.job(first.id).available_at)
    seen: list[object] = []

    def note(_conn: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        if "FOR UPDATE" in statement or "LIMIT" in statement:
            seen.append(parameters)

    (engine,) = database.run(lambda tx, _: [tx.conn.engine], [None])
    event.listen(engine, "before_cursor_execute", note)
    try:
        jobs.take("q")
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert any(bound[1] in (values.values() if isinstance(values, dict) else values) for values in seen)  # type: ignore[union-attr, operator]


def test_work_that_becomes_available_before_the_bound_is_found_at_once(jobs: Jobs) -> None:
    for _ in range(4):
        jobs.enqueue(priority=5)
    jobs.take("q")
    urgent = jobs.enqueue(priority=-5)
    assert jobs.take("q").id == urgent.id


def test_a_released_job_keeps_its_place_before_the_bound(jobs: Jobs) -> None:
    ids = [jobs.enqueue().id for _ in range(4)]
    first = jobs.take("q")
    jobs.settle(done(jobs.take("q")))
    jobs.settle(released(first))
    assert jobs.take("q").id == ids[0]


def test_work_of_another_replica_before_the_bound_is_found_when_the_bounded_look_brings_too_little(
    jobs: Jobs, replica: Callable[[], Jobs]
) -> None:
    for _ in range(2):
        jobs.enqueue(priority=5)
    jobs.take("q")
    jobs.take("q")
    urgent = replica().enqueue(priority=-5)
    assert jobs.take("q").id == urgent.id
