"""What locks bring to a process: lanes, loops, the desk of those who wait, and this process's memory of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.primitives.locks import health
from app.primitives.locks.here import Here
from app.primitives.locks.model import Acquire, Acquired
from app.primitives.locks.ops import control, inspect, sweep
from app.primitives.locks.ops.acquire import acquire, attend, leave, peek
from app.primitives.locks.ops.held import give_back, release, renew
from app.primitives.locks.routes import router
from app.runtime.desk import Desk, DeskPorts
from app.runtime.lanes import LaneSpec
from app.runtime.loops import LoopSpec, sweeping
from app.runtime.primitive import Primitive
from app.runtime.runtime import Runtime

LANES = (
    LaneSpec("locks.acquire", acquire, "claim"),
    LaneSpec("locks.leave", leave, "settle"),
    LaneSpec("locks.attend", attend, "renew"),
    LaneSpec("locks.renew", renew, "renew"),
    LaneSpec("locks.release", release, "settle"),
    LaneSpec("locks.give_back", give_back, "settle"),
    LaneSpec("locks.break", control.break_locks, "control"),
    LaneSpec("locks.expire", sweep.expire, "sweep", most_items=1),
    LaneSpec("locks.purge", sweep.purge, "sweep", most_items=1),
    LaneSpec("locks.verify", control.verify, "read", reads=True, together=True),
    LaneSpec("locks.peek", peek, "read", reads=True),
    LaneSpec("locks.list", inspect.list_locks, "read", reads=True),
    LaneSpec("locks.count_held", inspect.count_held, "figures", reads=True),
)


async def _attend(runtime: Runtime) -> None:
    """While callers of this process stand in line, say that it lives."""
    memory: Here = runtime.state("locks")
    if memory.waiting:
        await runtime.lane("locks.attend").submit(None)


LOOPS = (
    LoopSpec("locks.attend", 1.0, _attend, everywhere=True),
    LoopSpec("locks.expire", 1.0, sweeping("locks.expire", sweep.Batch())),
    LoopSpec("locks.purge", 30.0, sweeping("locks.purge", sweep.Batch())),
)


def wire(runtime: Runtime) -> None:
    """The desk of those who wait, and the memory that ops tell of what they committed."""

    async def serve(calls: list[Acquire]) -> Sequence[Any]:
        futures = runtime.lane("locks.acquire").put_many([(one, 1, 0) for one in calls])
        return [await future for future in futures]

    async def look(digests: list[Any]) -> Sequence[Any]:
        found: Sequence[Any] = await runtime.lane("locks.peek").submit(digests)
        return found

    async def back(acquired: Acquired) -> None:
        await runtime.lane("locks.give_back").submit(acquired)

    ports = DeskPorts(serve=serve, peek=look, give_back=back, found=lambda outcome: isinstance(outcome, Acquired))
    settings = runtime.settings
    desk = Desk(
        ports,
        settings.poll_seconds,
        settings.max_waiting_claims,
        settings.request_timeout_seconds,
        runtime.draining,
        poll_finds=1,  # one lock has one holder
    )
    runtime.desks["locks"] = desk
    runtime.keep("locks", Here(wake=lambda names: runtime.soon(desk.wake, names)))


LOCKS = Primitive("locks", router, lanes=LANES, loops=LOOPS, wire=wire, collect=health.collect)
