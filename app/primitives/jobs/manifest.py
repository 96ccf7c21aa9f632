"""What jobs bring to a process: lanes, loops, the desk, and this process's memory of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from app.errors import Refusal
from app.primitives.jobs import health
from app.primitives.jobs.here import Here
from app.primitives.jobs.model import Claim, Claimed
from app.primitives.jobs.ops import bulk, control, explain, inspect, queues, stats, sweep
from app.primitives.jobs.ops.claim import claim, peek
from app.primitives.jobs.ops.enqueue import enqueue
from app.primitives.jobs.ops.flows import refresh_memory
from app.primitives.jobs.ops.renew import renew
from app.primitives.jobs.ops.settle import settle
from app.primitives.jobs.ops.work import work
from app.primitives.jobs.routes import router
from app.runtime.desk import Desk, DeskPorts
from app.runtime.lanes import LaneSpec
from app.runtime.loops import LoopSpec, sweeping
from app.runtime.primitive import Primitive
from app.runtime.runtime import Runtime

# The crew "figures" is for all that touches the bookkeeping: who waits for a lock on it keeps no work and no sweep waiting.
LANES = (
    LaneSpec("jobs.enqueue", enqueue, "enqueue", most_items=1000),
    LaneSpec("jobs.claim", claim, "claim"),
    LaneSpec("jobs.work", work, "claim"),
    LaneSpec("jobs.settle", settle, "settle", most_items=1000),
    LaneSpec("jobs.renew", renew, "renew"),
    LaneSpec("jobs.give_back", sweep.give_back, "settle"),
    LaneSpec("jobs.promote", sweep.promote, "sweep", most_items=1),
    LaneSpec("jobs.abandon", sweep.abandon, "sweep", most_items=1),
    LaneSpec("jobs.purge", sweep.purge, "sweep", most_items=1),
    LaneSpec("jobs.flush", stats.flush, "figures"),
    LaneSpec("jobs.cancel", control.cancel, "control"),
    LaneSpec("jobs.retry", control.retry, "control"),
    LaneSpec("jobs.reconcile", control.reconcile, "control"),
    LaneSpec("jobs.bulk", bulk.change, "control", most_items=1),
    LaneSpec("jobs.put_queue", queues.put, "control"),
    LaneSpec("jobs.pause_queue", queues.pause, "control"),
    LaneSpec("jobs.peek", peek, "read", reads=True),
    LaneSpec("jobs.refresh", refresh_memory, "read", reads=True),
    LaneSpec("jobs.get", inspect.get, "read", reads=True),
    LaneSpec("jobs.list", inspect.list_jobs, "read", reads=True),
    LaneSpec("jobs.explain", explain.explain, "figures", reads=True),
    LaneSpec("jobs.queue", queues.get, "read", reads=True),
    LaneSpec("jobs.queues", queues.list_queues, "read", reads=True),
    LaneSpec("jobs.stats", stats.read, "figures", reads=True),
)


async def _flush(runtime: Runtime) -> float | None:
    """Write down what was seen."""
    memory: Here = runtime.state("jobs")
    figures, workers = memory.take()
    if figures or workers:
        try:
            await runtime.lane("jobs.flush").submit((figures, workers))
        except Refusal:
            memory.give_back(figures, workers)
            raise
    return None


async def _refresh(runtime: Runtime) -> float | None:
    """Learn what other replicas changed of flows and queues."""
    await runtime.lane("jobs.refresh").submit(None)
    return None


LOOPS = (
    LoopSpec("jobs.promote", 1.0, sweeping("jobs.promote", sweep.Batch())),
    LoopSpec("jobs.abandon", 1.0, sweeping("jobs.abandon", sweep.Batch())),
    LoopSpec("jobs.purge", 30.0, sweeping("jobs.purge", sweep.Batch())),
    LoopSpec("jobs.flush", 2.0, _flush, everywhere=True, essential=False),
    LoopSpec("jobs.refresh", 2.0, _refresh, everywhere=True),
)


def wire(runtime: Runtime) -> None:
    """The desk of waiting claims, and the memory that ops tell of what they committed."""

    async def serve(claims: list[Claim]) -> Sequence[Any]:
        futures = runtime.lane("jobs.claim").put_many([(one, one.limit, 0) for one in claims])
        return [await future for future in futures]

    async def look(places: list[Any]) -> Sequence[Any]:
        found: Sequence[Any] = await runtime.lane("jobs.peek").submit(places)
        return found

    async def give_back(claimed: Claimed) -> None:
        await runtime.lane("jobs.give_back").submit(claimed, weight=len(claimed.grants))

    ports = DeskPorts(serve=serve, peek=look, give_back=give_back, found=lambda claimed: bool(claimed.grants))
    desk = Desk(
        ports,
        runtime.settings.poll_seconds,
        runtime.settings.max_waiting_claims,
        runtime.settings.request_timeout_seconds,
        runtime.draining,
    )
    runtime.desks["jobs"] = desk

    def nudge(loop: str) -> Callable[[float], None]:
        def later(after_seconds: float) -> None:
            if loop in runtime.loops:
                runtime.soon(runtime.loops[loop].nudge, after_seconds)

        return later

    async def learn() -> None:
        """Limits and flows are known before the first request."""
        await runtime.lane("jobs.refresh").submit(None)

    runtime.before_start.append(learn)
    runtime.keep(
        "jobs",
        Here(
            wake=lambda flows: runtime.soon(desk.wake, flows),
            promote_in=nudge("jobs.promote"),
            abandon_in=nudge("jobs.abandon"),
        ),
    )


JOBS = Primitive(
    "jobs",
    router,
    lanes=LANES,
    loops=LOOPS,
    wire=wire,
    checks=health.checks,
    collect=health.collect,
)
