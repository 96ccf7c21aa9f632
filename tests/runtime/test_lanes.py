"""Lanes: many commands share one transaction, a full lane says so, and one command's fault stays its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from app.db.database import Database
from app.db.tx import Tx
from app.errors import NOT_FOUND, OVERLOADED, Refusal
from app.runtime.lanes import Crew, Lane, LaneSpec
from tests.db.conftest import ROWS, select_all

pytestmark = [pytest.mark.anyio, pytest.mark.engines("sqlite", "postgresql")]

Serve = Callable[..., list[Lane]]
SECONDS = 30


class Op:
    """Writes a row for each command, and records the batches that it was run with. `hold` keeps it inside its first unit."""

    def __init__(self, *, held: bool = False) -> None:
        self.batches: list[list[Any]] = []
        self.inside = threading.Event()
        self.go = threading.Event()
        if not held:
            self.go.set()

    def __call__(self, tx: Tx, commands: Sequence[Any]) -> Sequence[Any]:
        self.batches.append(list(commands))
        self.inside.set()
        assert self.go.wait(SECONDS)
        outcomes: list[Any] = []
        for command in commands:
            if command == "refuse":
                outcomes.append(Refusal(NOT_FOUND, "Not there."))
                continue
            if command == "guilty":
                raise ZeroDivisionError
            tx.conn.execute(ROWS.insert().values(key=str(command).encode(), amount=1))
            outcomes.append(f"done {command}")
        return outcomes

    async def entered(self) -> None:
        await asyncio.to_thread(self.inside.wait, SECONDS)
        assert self.inside.is_set()


def on_disk(database: Database) -> set[str]:
    return {key.decode() for key in database.read(select_all, None)}


async def test_what_waits_shares_one_transaction_in_the_order_sent(database: Database, serve: Serve) -> None:
    op = Op(held=True)
    (lane,) = serve(LaneSpec("writes", op, "test"))
    first = asyncio.create_task(lane.submit("first"))
    await op.entered()
    others = [lane.put(f"n{number}") for number in range(50)]
    op.go.set()
    assert await first == "done first"
    assert [await other for other in others] == [f"done n{number}" for number in range(50)]
    assert op.batches == [["first"], [f"n{number}" for number in range(50)]]
    assert (lane.served, lane.batches, lane.weight) == (51, 2, 0)
    assert len(on_disk(database)) == 51


async def test_alone_a_command_waits_for_nobody(serve: Serve) -> None:
    op = Op()
    (lane,) = serve(LaneSpec("writes", op, "test"))
    for number in range(3):
        assert await lane.submit(number) == f"done {number}"
    assert op.batches == [[0], [1], [2]]


async def test_an_answer_comes_only_after_the_commit(database: Database, serve: Serve) -> None:
    (lane,) = serve(LaneSpec("writes", Op(), "test"))
    for number in range(20):
        await lane.submit(number)
        assert str(number) in await asyncio.to_thread(on_disk, database)
    await asyncio.to_thread(database.close)


async def test_a_batch_ends_at_its_most_items_and_its_most_bytes(serve: Serve) -> None:
    op = Op(held=True)
    (lane,) = serve(LaneSpec("writes", op, "test", most_items=10, most_bytes=100))
    first = lane.put("first")
    await op.entered()
    commands = [("a", 4, 1), ("b", 6, 1), ("c", 1, 60), ("d", 1, 41), ("huge", 25, 1), ("e", 1, 500), ("f", 1, 1)]
    futures = lane.put_many(commands)
    assert lane.weight == 39
    op.go.set()
    await asyncio.gather(first, *futures)
    assert op.batches == [["first"], ["a", "b"], ["c"], ["d"], ["huge"], ["e"], ["f"]]


async def test_a_full_lane_refuses_and_takes_again_when_there_is_room(serve: Serve) -> None:
    op = Op(held=True)
    (lane,) = serve(LaneSpec("writes", op, "test"), capacity=5)
    first = lane.put("first")
    await op.entered()
    waiting = [lane.put(number) for number in range(5)]
    with pytest.raises(Refusal) as refused:
        await lane.submit("one too many")
    assert (refused.value.code.name, refused.value.http_status, refused.value.retry_after_seconds) == (
        "overloaded",
        503,
        1,
    )
    with pytest.raises(Refusal):
        lane.put_many([("all", 1, 0), ("or none", 1, 0)])
    op.go.set()
    await asyncio.gather(first, *waiting)
    assert await lane.submit("again") == "done again"
    assert "or none" not in [command for batch in op.batches for command in batch]


async def test_one_commands_refusal_does_not_touch_the_others(database: Database, serve: Serve) -> None:
    op = Op(held=True)
    (lane,) = serve(LaneSpec("writes", op, "test"))
    first = lane.put("first")
    await op.entered()
    futures = [asyncio.ensure_future(lane.submit(command)) for command in ("a", "refuse", "b")]
    await asyncio.sleep(0)
    op.go.set()
    await first
    a, refused, b = await asyncio.gather(*futures, return_exceptions=True)
    assert (a, b) == ("done a", "done b")
    assert isinstance(refused, Refusal)
    assert refused.code is NOT_FOUND
    assert op.batches[1] == ["a", "refuse", "b"]


async def test_of_a_batch_that_fails_only_the_guilty_command_fails(database: Database, serve: Serve) -> None:
    op = Op(held=True)
    (lane,) = serve(LaneSpec("writes", op, "test"))
    first = lane.put("first")
    await op.entered()
    futures = [lane.put(command) for command in ("a", "guilty", "b")]
    op.go.set()
    await first
    a, guilty, b = await asyncio.gather(*futures)
    assert (a, b) == ("done a", "done b")
    assert isinstance(guilty, Refusal)
    assert (guilty.code.name, guilty.http_status) == ("internal", 500)
    assert "ZeroDivision" not in guilty.detail
    assert op.batches[1:] == [["a", "guilty", "b"], ["a"], ["guilty"], ["b"]]
    assert on_disk(database) == {"first", "a", "b"}
    assert await lane.submit("after") == "done after"


async def test_an_op_that_gives_too_few_outcomes_is_caught(database: Database, serve: Serve) -> None:
    def short(tx: Tx, commands: Sequence[Any]) -> Sequence[Any]:
        tx.conn.execute(ROWS.insert().values(key=b"x", amount=1))
        return []

    (lane,) = serve(LaneSpec("writes", short, "test"))
    with pytest.raises(Refusal) as refused:
        await lane.submit("a")
    assert refused.value.code.name == "internal"
    assert on_disk(database) == set()


async def test_reading_lanes_run_one_command_at_a_time(database: Database, serve: Serve) -> None:
    seen: list[Any] = []

    def read(tx: Tx, command: Any) -> Any:
        seen.append(command)
        return command, select_all(tx, None)

    (writes, reads) = serve(LaneSpec("writes", Op(), "test"), LaneSpec("reads", read, "test", reads=True))
    await writes.submit("a")
    answers = await asyncio.gather(*(reads.submit([number]) for number in range(5)))
    assert [command for command, _ in answers] == seen == [[number] for number in range(5)]
    assert all(rows == {b"a": 1} for _, rows in answers)
    assert reads.batches == 5


async def test_the_lane_whose_head_has_waited_longest_is_served_first(serve: Serve) -> None:
    order: list[str] = []

    def named(name: str) -> Callable[..., Any]:
        def op(_: Tx, commands: Sequence[Any]) -> Sequence[Any]:
            order.append(name)
            return commands

        return op

    gate = Op(held=True)
    lanes = serve(*(LaneSpec(name, named(name), "test") for name in "abc"), LaneSpec("gate", gate, "test"))
    held = lanes[3].put("hold")
    await gate.entered()
    futures = [lanes[index].put(index) for index in (2, 0, 1)]
    gate.go.set()
    await asyncio.gather(held, *futures)
    assert order == ["c", "a", "b"]


async def test_closing_finishes_what_waits_and_takes_nothing_new(database: Database) -> None:
    op = Op(held=True)
    crew = Crew("closing", database, 1)
    lane = Lane(LaneSpec("writes", op, "test", most_items=3), 100, crew, SECONDS)
    crew.serve(lane)
    crew.start()
    futures = [lane.put(number) for number in range(10)]
    await op.entered()
    closing = threading.Thread(target=crew.close)
    closing.start()
    with crew._changed:
        assert crew._changed.wait_for(lambda: crew.closing, SECONDS)
    with pytest.raises(Refusal) as refused:
        lane.put("late")
    assert refused.value.code.name == "overloaded"
    op.go.set()
    await asyncio.to_thread(closing.join, SECONDS)
    assert [await future for future in futures] == [f"done {number}" for number in range(10)]
    assert not crew.alive()
    assert len(on_disk(database)) == 10


async def test_a_caller_is_told_when_no_answer_came_in_time_and_the_work_is_done_all_the_same(
    database: Database, serve: Serve
) -> None:
    op = Op(held=True)
    (lane,) = serve(LaneSpec("writes", op, "test"), deadline_seconds=0.05)
    with pytest.raises(Refusal) as refused:
        await lane.submit("slow")
    assert (refused.value.code.name, refused.value.retry_after_seconds) == ("database_unavailable", 1)
    op.go.set()
    after = lane.put("after")
    assert await after == "done after"
    assert on_disk(database) == {"slow", "after"}


async def test_each_of_several_callers_is_told_in_its_own_time(serve: Serve) -> None:
    """One timer serves all who wait in a lane: those who wait together, and those who come after it went off."""
    op, loop = Op(held=True), asyncio.get_running_loop()
    (lane,) = serve(LaneSpec("writes", op, "test"), deadline_seconds=0.05)
    for _ in range(2):
        began = loop.time()
        told = await asyncio.gather(lane.submit("one"), lane.submit("another"), return_exceptions=True)
        assert [type(one) for one in told] == [Refusal, Refusal]
        assert loop.time() - began >= 0.04
    op.go.set()


async def test_a_caller_that_went_away_takes_no_answer_from_the_others(serve: Serve) -> None:
    op = Op(held=True)
    (lane,) = serve(LaneSpec("writes", op, "test"))
    first = lane.put("first")
    await op.entered()
    gone, stays = asyncio.create_task(lane.submit("gone")), asyncio.create_task(lane.submit("stays"))
    await asyncio.sleep(0)
    gone.cancel()
    op.go.set()
    await first
    assert await stays == "done stays"


async def test_an_op_that_raises_a_refusal_refuses_all_of_the_batch_with_it(database: Database, serve: Serve) -> None:
    def busy(tx: Tx, commands: Sequence[Any]) -> Sequence[Any]:
        raise Refusal(OVERLOADED, "Another was quicker.", retry_after_seconds=1)

    (lane,) = serve(LaneSpec("writes", busy, "test"))
    outcomes = await asyncio.gather(*lane.put_many([("a", 1, 0), ("b", 1, 0)]))
    assert [outcome.http_status for outcome in outcomes] == [503, 503]
