"""What idempotency brings to a process: lanes, loops, the desk of those who wait for an outcome, and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.primitives.idempotency import health
from app.primitives.idempotency.here import Here
from app.primitives.idempotency.model import Check, Checked, Outcome
from app.primitives.idempotency.ops import inspect, sweep
from app.primitives.idempotency.ops.check import check, peek
from app.primitives.idempotency.ops.reconcile import reconcile
from app.primitives.idempotency.ops.settle import give_back, renew, settle
from app.primitives.idempotency.ops.told import EVERYBODY
from app.primitives.idempotency.routes import router
from app.runtime.desk import Desk, DeskPorts
from app.runtime.lanes import LaneSpec
from app.runtime.loops import LoopSpec, sweeping
from app.runtime.primitive import Primitive
from app.runtime.runtime import Runtime

LANES = (
    LaneSpec("idempotency.check", check, "enqueue"),
    LaneSpec("idempotency.settle", settle, "settle"),
    LaneSpec("idempotency.renew", renew, "renew"),
    LaneSpec("idempotency.give_back", give_back, "settle"),
    LaneSpec("idempotency.reconcile", reconcile, "control"),
    LaneSpec("idempotency.abandon", sweep.abandon, "sweep", most_items=1),
    LaneSpec("idempotency.purge", sweep.purge, "sweep", most_items=1),
    LaneSpec("idempotency.peek", peek, "read", reads=True),
    LaneSpec("idempotency.list", inspect.list_keys, "read", reads=True),
    LaneSpec("idempotency.count", inspect.count_states, "figures", reads=True),
)


LOOPS = (
    LoopSpec("idempotency.abandon", 1.0, sweeping("idempotency.abandon", sweep.Batch())),
    LoopSpec("idempotency.purge", 30.0, sweeping("idempotency.purge", sweep.Batch())),
)


def wire(runtime: Runtime) -> None:
    """The desk of those who wait, and the memory that ops tell of what they committed."""

    async def serve(calls: list[Check]) -> Sequence[Any]:
        futures = runtime.lane("idempotency.check").put_many([(one, 1, 0) for one in calls])
        return [await future for future in futures]

    async def look(digests: list[Any]) -> Sequence[Any]:
        found: Sequence[Any] = await runtime.lane("idempotency.peek").submit(digests)
        return found

    async def back(checked: Checked) -> None:
        if checked.outcome is Outcome.ACQUIRED and not checked.replayed:
            await runtime.lane("idempotency.give_back").submit(checked)

    ports = DeskPorts(
        serve=serve, peek=look, give_back=back, found=lambda checked: checked.outcome is not Outcome.IN_PROGRESS
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
    runtime.desks["idempotency"] = desk
    runtime.keep("idempotency", Here(wake=lambda keys: runtime.soon(desk.wake, keys)))


IDEMPOTENCY = Primitive(
    "idempotency",
    router,
    lanes=LANES,
    loops=LOOPS,
    wire=wire,
    checks=health.checks,
    collect=health.collect,
)
