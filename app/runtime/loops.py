"""Loops: sweeps that run in every replica at once. One never dies of an exception, and reports when it last succeeded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from app.clock import MICROS, steady_micros
from app.errors import Refusal

log = structlog.get_logger("tenure.loops")

LONGEST_PAUSE_SECONDS = 30.0
AT_ONCE = 0.0  # the pause of a loop whose batch was full


@dataclass(frozen=True, slots=True)
class LoopSpec:
    """A sweep as a manifest declares it. `body(runtime)` does one round and gives the seconds until the next, or None for
    `every_seconds`; 0 means at once (its batch was full).
    """

    name: str
    every_seconds: float
    body: Callable[[Any], Awaitable[float | None]]
    everywhere: bool = False  # runs also in processes that leave the sweeps to others (`--no-loops`)
    essential: bool = True  # False: what it does is for people to read, and its failing takes no traffic away


def sweeping(lane: str, batch: Any) -> Callable[[Any], Awaitable[float | None]]:
    """The body of a loop that runs one batch through a lane, and at once another while batches are full.

    `batch.most`: what a full one changes; the lane's outcome is how many it did change.
    """

    async def body(runtime: Any) -> float | None:
        changed = await runtime.lane(lane).submit(batch)
        return AT_ONCE if changed >= batch.most else None

    return body


class Loop:
    """One sweep of this process."""

    def __init__(self, spec: LoopSpec, runtime: Any) -> None:
        self.spec = spec
        self._runtime = runtime
        self._nudge = asyncio.Event()
        self._soonest: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.last_success: int | None = None
        self.started = steady_micros()
        self.failures = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"loop {self.spec.name}")

    def nudge(self, after_seconds: float = 0.0) -> None:
        """Run again after so long at the latest; the sooner of several nudges counts. Only from the event loop."""
        if after_seconds <= 0:
            self._nudge.set()
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + after_seconds
        if (
            self._soonest is None
            or self._soonest.cancelled()
            or self._soonest.when() > at
            or self._soonest.when() < loop.time()
        ):
            if self._soonest is not None:
                self._soonest.cancel()
            self._soonest = loop.call_at(at, self._nudge.set)

    async def stop(self) -> None:
        if self._soonest is not None:
            self._soonest.cancel()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def age_seconds(self) -> float:
        """Seconds since the last success (or since the start, before the first)."""
        return (steady_micros() - (self.last_success or self.started)) / MICROS

    def healthy(self) -> bool:
        alive = self._task is not None and not self._task.done()
        return alive and self.age_seconds() < max(15.0, 5 * self.spec.every_seconds)

    async def _run(self) -> None:
        pause = 0.0
        while True:
            self._nudge.clear()
            try:
                again = await self.spec.body(self._runtime)
            except Exception as error:  # a loop must outlive every fault; it counts, backs off and goes on
                self.failures += 1
                pause = min(LONGEST_PAUSE_SECONDS, max(0.5, pause * 2))
                known = isinstance(error, Refusal)
                log.warning(
                    "loop_failed", loop=self.spec.name, error=type(error).__name__, exc_info=None if known else error
                )
            else:
                self.last_success = steady_micros()
                pause = self.spec.every_seconds if again is None else again
            if pause > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause * random.uniform(0.8, 1.2)):
                        await self._nudge.wait()
            else:
                await asyncio.sleep(0)
