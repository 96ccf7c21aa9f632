"""What the cache brings to a process: lanes, loops, the desk of those who wait for a value, and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.primitives.cache import health
from app.primitives.cache.here import Here
from app.primitives.cache.model import Found, Remember, Remembered
from app.primitives.cache.ops import policies, sweep
from app.primitives.cache.ops.fill import fill
from app.primitives.cache.ops.read import peek, read
from app.primitives.cache.ops.remember import give_back, remember
from app.primitives.cache.ops.told import EVERYBODY
from app.primitives.cache.ops.write import forget, put
from app.primitives.cache.routes import router
from app.runtime.desk import Desk, DeskPorts
from app.runtime.lanes import LaneSpec
from app.runtime.loops import AT_ONCE, LoopSpec, sweeping
from app.runtime.primitive import Primitive
from app.runtime.runtime import Runtime

LANES = (
    LaneSpec("cache.read", read, "read", reads=True, together=True),
    LaneSpec("cache.remember", remember, "claim"),
    LaneSpec("cache.give_back", give_back, "settle"),
    LaneSpec("cache.fill", fill, "settle"),
    LaneSpec("cache.put", put, "enqueue"),
    LaneSpec("cache.delete", forget, "enqueue"),
    LaneSpec("cache.clear", policies.clear, "control"),
    LaneSpec("cache.put_policy", policies.put_policies, "control"),
    LaneSpec("cache.get_policy", policies.get_policy, "read", reads=True),
    LaneSpec("cache.list", policies.list_namespaces, "read", reads=True),
    LaneSpec("cache.peek", peek, "read", reads=True),
    LaneSpec("cache.purge", sweep.purge, "sweep", most_items=1),
    LaneSpec("cache.sweep_cleared", sweep.sweep_cleared, "sweep", most_items=1),
    LaneSpec("cache.make_room", sweep.make_room, "sweep", most_items=1),
    LaneSpec("cache.note_used", sweep.note_used, "sweep", most_items=1),
)


async def _note_used(runtime: Runtime) -> float | None:
    memory: Here = runtime.state("cache")
    digests = memory.take_used(sweep.BATCH)
    if digests:
        await runtime.lane("cache.note_used").submit(digests)
    return AT_ONCE if len(digests) == sweep.BATCH else None


async def _make_room(runtime: Runtime) -> float | None:
    """Again at once as long as anything was evicted."""
    return AT_ONCE if await runtime.lane("cache.make_room").submit(sweep.Batch()) else None


LOOPS = (
    LoopSpec("cache.note_used", 5.0, _note_used, everywhere=True, essential=False),
    LoopSpec("cache.make_room", 5.0, _make_room),
    LoopSpec("cache.sweep_cleared", 5.0, sweeping("cache.sweep_cleared", sweep.Batch())),
    LoopSpec("cache.purge", 10.0, sweeping("cache.purge", sweep.Batch())),
)


def wire(runtime: Runtime) -> None:
    """The desk of those who wait, and the memory that ops tell of what they committed."""

    async def serve(calls: list[Remember]) -> Sequence[Any]:
        futures = runtime.lane("cache.remember").put_many([(one, 1, 0) for one in calls])
        return [await future for future in futures]

    async def look(digests: list[Any]) -> Sequence[Any]:
        found: Sequence[Any] = await runtime.lane("cache.peek").submit(digests)
        return found

    async def back(remembered: Remembered) -> None:
        if remembered.found is Found.FILL and not remembered.replayed:
            await runtime.lane("cache.give_back").submit(remembered)

    ports = DeskPorts(
        serve=serve, peek=look, give_back=back, found=lambda remembered: remembered.found is not Found.FILLING
    )
    settings = runtime.settings
    desk = Desk(
        ports,
        settings.poll_seconds,
        settings.max_waiting_claims,
        settings.request_timeout_seconds,
        runtime.draining,
        poll_finds=EVERYBODY,
    )
    runtime.desks["cache"] = desk
    runtime.keep("cache", Here(wake=lambda entries: runtime.soon(desk.wake, entries)))


CACHE = Primitive("cache", router, lanes=LANES, loops=LOOPS, wire=wire, collect=health.collect)
