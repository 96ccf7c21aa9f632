"""What the outbox brings to a process: lanes, loops, the desk, and this process's memory of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from app.primitives.outbox import health
from app.primitives.outbox.delivery.checks import Checks
from app.primitives.outbox.delivery.couriers import Couriers
from app.primitives.outbox.delivery.inquiries import Inquiries
from app.primitives.outbox.here import Here
from app.primitives.outbox.model.commands import Claim, Claimed
from app.primitives.outbox.model.finding import ClaimedDoubts
from app.primitives.outbox.ops import (
    adopt,
    checks,
    control,
    destinations,
    finding,
    flows,
    inquiries,
    inspect,
    report,
    sweep,
)
from app.primitives.outbox.ops.claim import claim
from app.primitives.outbox.ops.decide import decide
from app.primitives.outbox.ops.owed import record_owed
from app.primitives.outbox.ops.record import record
from app.primitives.outbox.ops.renew import renew
from app.primitives.outbox.ops.settle import settle
from app.primitives.outbox.ops.work import work
from app.primitives.outbox.routes import router
from app.runtime.desk import Desk, DeskPorts
from app.runtime.lanes import LaneSpec
from app.runtime.loops import AT_ONCE, LoopSpec, sweeping
from app.runtime.primitive import Primitive
from app.runtime.runtime import Runtime

LANES = (
    LaneSpec("outbox.record", record, "enqueue", most_items=1000),
    LaneSpec("outbox.decide", decide, "enqueue", most_items=1000),
    LaneSpec("outbox.undecided", checks.any_due, "read", reads=True),
    LaneSpec("outbox.check_take", checks.take, "sweep", most_items=1),
    LaneSpec("outbox.check_tell", checks.tell, "sweep"),
    LaneSpec("outbox.claim", claim, "claim"),
    LaneSpec("outbox.work", work, "claim"),
    LaneSpec("outbox.settle", settle, "settle", most_items=1000),
    LaneSpec("outbox.renew", renew, "renew"),
    LaneSpec("outbox.claim_doubts", finding.claim, "claim"),
    LaneSpec("outbox.find", finding.find, "settle"),
    LaneSpec("outbox.give_back_doubts", finding.give_back, "settle"),
    LaneSpec("outbox.peek_doubts", finding.peek, "read", reads=True),
    LaneSpec("outbox.doubting", inquiries.any_open, "read", reads=True),
    LaneSpec("outbox.inquire", inquiries.take, "sweep", most_items=1),
    LaneSpec("outbox.inquired", inquiries.tell, "sweep"),
    LaneSpec("outbox.inquire_by_job", inquiries.enqueue, "sweep", most_items=1),
    LaneSpec("outbox.doubts_due", inquiries.look, "sweep", most_items=1),
    LaneSpec("outbox.give_back", sweep.give_back, "settle"),
    LaneSpec("outbox.adopt", adopt.adopt, "sweep", most_items=1),
    LaneSpec("outbox.promote", sweep.promote, "sweep", most_items=1),
    LaneSpec("outbox.abandon", sweep.abandon, "sweep", most_items=1),
    LaneSpec("outbox.purge", sweep.purge, "sweep", most_items=1),
    LaneSpec("outbox.reconcile", control.reconcile, "control"),
    LaneSpec("outbox.requeue", control.requeue, "control", most_items=1),
    LaneSpec("outbox.release_stale", control.release_stale, "control", most_items=1),
    LaneSpec("outbox.purge_messages", control.purge, "control", most_items=1),
    LaneSpec("outbox.put_destination", destinations.put, "control"),
    LaneSpec("outbox.peek", flows.peek, "read", reads=True),
    LaneSpec("outbox.waiting", adopt.waiting, "read", reads=True),
    LaneSpec("outbox.get", inspect.get, "read", reads=True),
    LaneSpec("outbox.list", inspect.list_messages, "read", reads=True),
    LaneSpec("outbox.stats", inspect.stats, "figures", reads=True),
    LaneSpec("outbox.report", report.read, "figures", reads=True),
    LaneSpec("outbox.served", destinations.served, "read", reads=True),
    LaneSpec("outbox.destination", destinations.get, "read", reads=True),
    LaneSpec("outbox.destinations", destinations.list_destinations, "read", reads=True),
)


async def _adopt(runtime: Runtime) -> float | None:
    """Look whether producers wrote anything, without a lock; only then take it over."""
    if not await runtime.lane("outbox.waiting").submit(None):
        return None
    batch = adopt.Batch()
    looked_at = await runtime.lane("outbox.adopt").submit(batch)
    return AT_ONCE if looked_at >= batch.most else None


async def _deliver(runtime: Runtime) -> float | None:
    """See that there is a courier for each destination that the service delivers to."""
    await runtime.state("outbox.couriers").refresh()
    return None


async def _check(runtime: Runtime) -> float | None:
    """Ask producers about prepared messages whose time has passed."""
    if await runtime.lane("outbox.undecided").submit(None):
        asking: Checks = runtime.state("outbox.checks")
        await asking.ask()
    return None


async def _reconcile(runtime: Runtime) -> float | None:
    """Open doubts whose pause is over, and ask about those for which the service itself finds out."""
    if not await runtime.lane("outbox.doubting").submit(None):
        return None
    batch = sweep.Batch()
    looked_at = await runtime.lane("outbox.doubts_due").submit(batch)
    enqueued = await runtime.lane("outbox.inquire_by_job").submit(batch)
    asking: Inquiries = runtime.state("outbox.inquiries")
    await asking.ask()
    return AT_ONCE if max(looked_at, enqueued) >= batch.most else None


LOOPS = (
    LoopSpec("outbox.reconcile", 1.0, _reconcile),
    LoopSpec("outbox.check", 1.0, _check),
    LoopSpec("outbox.deliver", 1.0, _deliver),
    LoopSpec("outbox.adopt", 0.1, _adopt),
    LoopSpec("outbox.promote", 1.0, sweeping("outbox.promote", sweep.Batch())),
    LoopSpec("outbox.abandon", 1.0, sweeping("outbox.abandon", sweep.Batch())),
    LoopSpec("outbox.purge", 30.0, sweeping("outbox.purge", sweep.Batch())),
)


def _doubts_desk(runtime: Runtime) -> Desk:
    """Claims of reconcilers that wait for messages to become unknown."""

    async def serve(claims: list[Claim]) -> Sequence[Any]:
        futures = runtime.lane("outbox.claim_doubts").put_many([(one, one.limit, 0) for one in claims])
        return [await future for future in futures]

    async def look(places: list[Any]) -> Sequence[Any]:
        found: Sequence[Any] = await runtime.lane("outbox.peek_doubts").submit(places)
        return found

    async def give_back(claimed: ClaimedDoubts) -> None:
        await runtime.lane("outbox.give_back_doubts").submit(claimed, weight=len(claimed.grants))

    ports = DeskPorts(serve=serve, peek=look, give_back=give_back, found=lambda claimed: bool(claimed.grants))
    settings = runtime.settings
    return Desk(
        ports,
        settings.poll_seconds,
        settings.max_waiting_claims,
        settings.request_timeout_seconds,
        runtime.draining,
    )


def wire(runtime: Runtime) -> None:
    """The desk of waiting claims, and the memory that ops tell of what they committed."""

    async def serve(claims: list[Claim]) -> Sequence[Any]:
        futures = runtime.lane("outbox.claim").put_many([(one, one.limit, 0) for one in claims])
        return [await future for future in futures]

    async def look(places: list[Any]) -> Sequence[Any]:
        found: Sequence[Any] = await runtime.lane("outbox.peek").submit(places)
        return found

    async def give_back(claimed: Claimed) -> None:
        await runtime.lane("outbox.give_back").submit(claimed, weight=len(claimed.grants))

    ports = DeskPorts(serve=serve, peek=look, give_back=give_back, found=lambda claimed: bool(claimed.grants))
    settings = runtime.settings
    desk = Desk(
        ports,
        settings.poll_seconds,
        settings.max_waiting_claims,
        settings.request_timeout_seconds,
        runtime.draining,
    )
    runtime.desks["outbox"] = desk

    def nudge(loop: str) -> Callable[[float], None]:
        def later(after_seconds: float) -> None:
            if loop in runtime.loops:
                runtime.soon(runtime.loops[loop].nudge, after_seconds)

        return later

    couriers, asking = Couriers(runtime), Checks(runtime)
    inquiring = Inquiries(runtime)
    runtime.keep("outbox.checks", asking)
    runtime.keep("outbox.inquiries", inquiring)
    runtime.before_stop += [asking.stop, inquiring.stop]
    doubts = _doubts_desk(runtime)
    runtime.desks["outbox.reconciliations"] = doubts
    runtime.keep("outbox.couriers", couriers)
    runtime.before_stop.append(couriers.stop)
    runtime.state("jobs").record_owed = record_owed  # terminal handlers of jobs
    runtime.keep(
        "outbox",
        Here(
            wake=lambda flows: runtime.soon(desk.wake, flows),
            promote_in=nudge("outbox.promote"),
            abandon_in=nudge("outbox.abandon"),
            doubted=lambda flows: runtime.soon(doubts.wake, flows),
        ),
    )


OUTBOX = Primitive(
    "outbox",
    router,
    lanes=LANES,
    loops=LOOPS,
    wire=wire,
    checks=health.checks,
    collect=health.collect,
)
