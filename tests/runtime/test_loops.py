"""Loops: a sweep never dies of an exception, runs sooner when told, and says how long ago it last succeeded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from app.errors import DATABASE_UNAVAILABLE, Refusal
from app.runtime.loops import Loop, LoopSpec

pytestmark = pytest.mark.anyio

SECONDS = 30
HOUR = 3600.0


class Rounds:
    """A loop's body: counts its rounds, and does in each what the script says (an exception to raise, a pause to give)."""

    def __init__(self, *script: Exception | float | None) -> None:
        self.script = list(script)
        self.count = 0
        self.changed = asyncio.Condition()

    async def __call__(self, _runtime: Any) -> float | None:
        self.count += 1
        async with self.changed:
            self.changed.notify_all()
        step = self.script.pop(0) if self.script else None
        if isinstance(step, Exception):
            raise step
        return step

    async def reached(self, count: int) -> None:
        async with asyncio.timeout(SECONDS), self.changed:
            await self.changed.wait_for(lambda: self.count >= count)
        await asyncio.sleep(0)


@pytest.fixture
async def run() -> AsyncIterator[Callable[..., Loop]]:
    loops: list[Loop] = []

    def start(body: Rounds, every_seconds: float = HOUR) -> Loop:
        loop = Loop(LoopSpec("test", every_seconds, body), None)
        loop.start()
        loops.append(loop)
        return loop

    yield start
    for loop in loops:
        await loop.stop()


async def test_a_loop_runs_at_once_and_then_waits(run: Callable[..., Loop]) -> None:
    body = Rounds()
    run(body)
    await body.reached(1)
    await asyncio.sleep(0)
    assert body.count == 1


async def test_a_loop_runs_again_and_again(run: Callable[..., Loop]) -> None:
    body = Rounds()
    run(body, 0.001)
    await body.reached(5)


async def test_a_full_batch_is_followed_by_another_at_once(run: Callable[..., Loop]) -> None:
    body = Rounds(0, 0, 0)
    run(body)
    await body.reached(4)
    assert body.count == 4


async def test_a_loop_survives_every_exception_and_counts_it(run: Callable[..., Loop]) -> None:
    body = Rounds(ZeroDivisionError(), Refusal(DATABASE_UNAVAILABLE, "Away."), KeyError("x"))
    loop = run(body)
    for count in range(1, 5):
        await body.reached(count)
        loop.nudge()
    await body.reached(5)
    assert loop.failures == 3
    assert loop.healthy()
    assert loop.last_success is not None


async def test_a_loop_that_only_fails_never_reports_success(run: Callable[..., Loop]) -> None:
    body = Rounds(ZeroDivisionError(), ZeroDivisionError())
    loop = run(body)
    await body.reached(1)
    loop.nudge()
    await body.reached(2)
    assert loop.last_success is None
    assert loop.age_seconds() >= 0


async def test_a_loop_that_has_not_succeeded_for_long_is_not_healthy(run: Callable[..., Loop]) -> None:
    """procrastinate#1408, dkron#998 (scenario 45): the recovery itself stops silently."""
    body = Rounds()
    loop = run(body, 1.0)
    await body.reached(1)
    assert loop.healthy()
    assert loop.last_success is not None
    loop.last_success -= 16_000_000
    assert loop.age_seconds() > 15
    assert not loop.healthy()


async def test_a_loop_that_was_stopped_is_not_healthy(run: Callable[..., Loop]) -> None:
    body = Rounds()
    loop = run(body)
    assert loop.healthy() or loop.last_success is None
    await body.reached(1)
    await loop.stop()
    assert not loop.healthy()


async def test_a_loop_that_never_began_can_be_stopped() -> None:
    loop = Loop(LoopSpec("test", 1.0, Rounds()), None)
    loop.nudge()
    await loop.stop()
    assert not loop.healthy()


async def test_a_nudge_brings_the_next_round_forward(run: Callable[..., Loop]) -> None:
    body = Rounds()
    loop = run(body)
    await body.reached(1)
    loop.nudge()
    await body.reached(2)
    loop.nudge(0.001)
    await body.reached(3)


async def test_a_nudge_during_a_round_is_not_lost(run: Callable[..., Loop]) -> None:
    loops: list[Loop] = []

    class Nudging(Rounds):
        async def __call__(self, runtime: Any) -> float | None:
            again = await super().__call__(runtime)
            if self.count == 1:
                loops[0].nudge()
            return again

    body = Nudging()
    loops.append(run(body))
    await body.reached(2)


async def test_of_several_nudges_the_soonest_counts(run: Callable[..., Loop]) -> None:
    body = Rounds()
    loop = run(body)
    await body.reached(1)
    loop.nudge(HOUR)
    loop.nudge(0.001)
    loop.nudge(HOUR)
    await body.reached(2)
    loop.nudge(HOUR)
    loop.nudge(0.001)
    await body.reached(3)
