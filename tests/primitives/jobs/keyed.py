"""Jobs with keys: how tests ask for them, and what must hold of all keys at every commit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from sqlalchemy import event

from app.clock import micros
from app.primitives.jobs.model import (
    ENDED,
    Concurrency,
    Debounce,
    Enqueued,
    Mark,
    OnConflict,
    Place,
    State,
    Unique,
    Until,
    concurrency_digest,
    debounce_digest,
    unique_digest,
)
from app.primitives.jobs.ops.lines import place_of
from app.primitives.jobs.tables import job_limits, job_slots, job_uniques
from app.primitives.jobs.tables import jobs as jobs_table
from tests.primitives.jobs.driving import Jobs, good, new_job

KEEP, REPLACE, REJECT = OnConflict.KEEP, OnConflict.REPLACE, OnConflict.REJECT
STARTED, FINISHED = Until.STARTED, Until.FINISHED


def unique(name: str, on_conflict: OnConflict = KEEP, until: Until = FINISHED, type_: str = "t") -> Unique:
    return Unique(name.encode(), unique_digest(type_, name.encode()), until, on_conflict)


def debounce(name: str, delay: float = 10, max_wait: float = 100, type_: str = "t") -> Debounce:
    return Debounce(name.encode(), debounce_digest(type_, name.encode()), micros(delay), micros(max_wait))


def slot(name: str = "k", limit: int = 1) -> Concurrency:
    return Concurrency(name.encode(), concurrency_digest(name.encode()), limit)


def send(jobs: Jobs, queue: str = "q", type_: str = "t", version: int = 1, **fields: Any) -> Enqueued:
    """What one enqueue is answered, which must not be a refusal."""
    (outcome,) = jobs.enqueue_all(new_job(queue, type_, version, **fields))
    answer: Enqueued = good(outcome)
    return answer


def try_to_send(jobs: Jobs, queue: str = "q", type_: str = "t", version: int = 1, **fields: Any) -> Any:
    (outcome,) = jobs.enqueue_all(new_job(queue, type_, version, **fields))
    return outcome


def holder_of(jobs: Jobs, key: Unique | Debounce) -> bytes | None:
    """The job that holds the key on disk."""
    rows = jobs.rows(job_uniques, job_uniques.c.holding == key.digest)
    return bytes(rows[0].job_id) if rows else None


def sent(jobs: Jobs, act: Callable[[], Any]) -> list[str]:
    """The statements that this thread's connection sends while `act` runs."""
    seen: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    with jobs.database._connections.mine("write").at_work() as connection:
        engine = connection.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        act()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    return seen


def states(jobs: Jobs) -> dict[bytes, State]:
    return {bytes(row.id): State(row.state) for row in jobs.rows(jobs_table)}


def check_keys(jobs: Jobs, *, most_ever: int | None = None) -> None:
    """What holds at every commit. `most_ever`: the highest limit of any key so far, where limits were lowered."""
    rows = {bytes(row.id): row for row in jobs.rows(jobs_table)}
    for row in jobs.rows(job_uniques):
        assert bytes(row.job_id) in rows, "no key without its job"
        job = rows[bytes(row.job_id)]
        assert row.holding in (None, row.digest)
        if row.holding is not None:
            assert State(job.state) not in ENDED, "an ended job holds no key"
            if not job.marks & Mark.UNIQUE_UNTIL_FINISHED:
                assert job.state in (State.AVAILABLE, State.SCHEDULED, State.BLOCKED), "a started job has let go of it"
        elif job.marks & Mark.UNIQUE_UNTIL_FINISHED:
            assert State(job.state) in ENDED, "it holds until it has ended"
    limits = {bytes(row.digest): row for row in jobs.rows(job_limits)}
    lines: dict[bytes, list[Any]] = defaultdict(list)
    seen = jobs.rows(job_slots)
    for place in seen:
        assert bytes(place.job_id) in rows, "no place without its job"
        job = rows[bytes(place.job_id)]
        assert Place(place.place) is place_of(State(job.state)), (State(job.state), Place(place.place))
        assert place.priority == job.priority
        lines[bytes(place.digest)].append(place)
    assert {bytes(place.job_id) for place in seen} == {key for key, row in rows.items() if row.marks & Mark.CONCURRENCY}
    assert lines.keys() == limits.keys(), "a key lives as long as a job has it"
    for digest, places in lines.items():
        held = sum(place.place == Place.HOLDING for place in places)
        waiting = sum(place.place == Place.WAITING for place in places)
        assert held <= (most_ever or limits[digest].most), "no more hold a slot than the limit allows"
        assert not waiting or held >= limits[digest].most, "where somebody waits, every slot is held"
        assert len({place.position for place in places}) == len(places)
    assert not [row for key, row in rows.items() if row.state == State.BLOCKED and not row.marks & Mark.CONCURRENCY]
