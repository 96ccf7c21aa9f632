"""A courier: delivers the messages of one destination in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import structlog

from app.access import Caller, Principal
from app.clock import MICROS, micros, steady_micros
from app.errors import Refusal
from app.ids import id_text
from app.outgoing.client import Flight, Outgoing
from app.outgoing.replies import Fate, Reply
from app.outgoing.verdicts import Outcome as Verdicts
from app.outgoing.verdicts import Verdict, judge
from app.primitives.outbox.delivery.breaker import Breaker
from app.primitives.outbox.delivery.calls import call_of
from app.primitives.outbox.model.commands import Claim, Granted, Settle, Settlement
from app.primitives.outbox.model.destinations import Destination, Secrets
from app.primitives.outbox.model.settlements import make_settlement
from app.primitives.outbox.model.states import Outcome, ReleaseReason
from app.runtime.runtime import Runtime

log = structlog.get_logger("tenure.outbox.delivery")

BY_SERVICE = Caller(Principal("delivery", "delivery", frozenset()), "delivery")
WAIT_SECONDS = 25.0  # of one claim at the desk
LEASE_BEYOND_CALL_SECONDS = 30.0  # for what the call takes and its settlement, also where the database is slow
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
_OUTCOMES = {
    Verdicts.SENT: Outcome.SENT,
    Verdicts.RETRY: Outcome.RETRY,
    Verdicts.REJECTED: Outcome.REJECTED,
    Verdicts.UNKNOWN: Outcome.UNKNOWN,
}


@dataclass(eq=False, slots=True)
class Courier:
    """One destination's. `destination` and `secrets` are replaced as they are set anew; what is under way goes on."""

    runtime: Runtime
    destination: Destination
    secrets: Secrets
    took: Callable[[str, str, int], None]  # told of every call: destination, outcome, microseconds
    breaker: Breaker = field(default_factory=Breaker)
    under_way: set[asyncio.Task[None]] = field(default_factory=set)
    _next_at: float = 0.0
    _freed: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"courier {self.destination.name}")

    async def stop(self, grace_seconds: float) -> None:
        """Take nothing new; let what is under way end within the grace, then cut it short and settle what is known of it."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self.under_way:
            _, late = await asyncio.wait(self.under_way, timeout=grace_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    @property
    def failed(self) -> bool:
        """It has ended by a fault of ours."""
        return self._task is not None and self._task.done() and not self.runtime.draining.is_set()

    # -- claiming ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self.runtime.draining.is_set():
            try:
                for grant in await self._claim(await self._room()):
                    task = asyncio.create_task(self._deliver(grant), name=f"delivery to {self.destination.name}")
                    self.under_way.add(task)
                    task.add_done_callback(self._ended)
            except Refusal as refusal:
                log.info("delivery_claim_refused", destination=self.destination.name, code=refusal.code.name)
                await asyncio.sleep(refusal.retry_after_seconds or 1)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.under_way.discard(task)
        self._freed.set()
        if not task.cancelled() and (fault := task.exception()) is not None:
            # its lease ends, and the message is unknown: nothing is guessed
            log.error("delivery_failed", destination=self.destination.name, error=type(fault).__name__, exc_info=fault)

    async def _room(self) -> int:
        """Wait until a call may begin; gives how many may."""
        while True:
            now = asyncio.get_running_loop().time()
            pause = max(self.breaker.open_for(now), self._next_at - now)
            if pause > 0:
                await asyncio.sleep(min(pause, 1.0))  # a destination that was set anew is looked at soon
                continue
            most = self.destination.delivery.max_in_flight or self.runtime.settings.delivery_max_in_flight
            free = most - len(self.under_way)
            if self.breaker.failures and self.under_way:
                free = 0  # one at a time until it answers again
            if free > 0:
                single = self.breaker.failures or self.destination.delivery.max_per_second
                return 1 if single else min(free, 100)
            self._freed.clear()
            await self._freed.wait()

    async def _claim(self, limit: int) -> tuple[Granted, ...]:
        lease = micros(self._timeout + LEASE_BEYOND_CALL_SECONDS)
        claim = Claim((self.destination.name,), (), "service", limit, lease, BY_SERVICE, by_service=True)
        claimed = await self.runtime.desks["outbox"].claim(claim, WAIT_SECONDS, lambda: False)
        if claimed is None:
            return ()
        if (rate := self.destination.delivery.max_per_second) is not None and claimed.grants:
            self._next_at = asyncio.get_running_loop().time() + 1 / rate
        grants: tuple[Granted, ...] = claimed.grants
        return grants

    @property
    def _timeout(self) -> float:
        return self.destination.delivery.timeout_seconds or self.runtime.settings.delivery_timeout_seconds

    # -- one message ---------------------------------------------------------------------------------------------------

    async def _deliver(self, grant: Granted) -> None:
        destination = self.destination
        flight, began = Flight(), steady_micros()
        try:
            reply = await self._send(grant, destination, flight)
        except asyncio.CancelledError:
            reply = flight.interrupted()
            if reply.fate is Fate.NOT_SENT:
                await self._settle(grant, _released(grant))
                return
        verdict = judge(reply, idempotent=destination.idempotent)
        self.took(destination.name, verdict.outcome.value, steady_micros() - began)
        self._learn(reply, verdict)
        await self._settle(grant, _settlement(grant, reply, verdict))
        log.info(
            "delivered", destination=destination.name, message_id=id_text(grant.id), attempt=grant.attempt,
            outcome=verdict.outcome.value, category=verdict.category,
        )  # fmt: skip

    async def _send(self, grant: Granted, destination: Destination, flight: Flight) -> Reply:
        now, settings = self.runtime.clock.now(), self.runtime.settings
        call = call_of(
            grant,
            destination.delivery,
            self.secrets.headers,
            self.secrets.signing_at(now),
            source=settings.public_url or "/tenure",
            mode=settings.delivery_mode,
            timeout_seconds=self._timeout,
            now_seconds=now // MICROS,
        )
        outgoing: Outgoing = self.runtime.state("outgoing")
        return await outgoing.send(call, flight)

    def _learn(self, reply: Reply, verdict: Verdict) -> None:
        now = asyncio.get_running_loop().time()
        well = reply.status is not None and reply.status < 500 and reply.status not in (408, 425, 429)
        if well and reply.fate is Fate.ANSWERED:
            self.breaker.succeeded()
        else:
            self.breaker.failed(now)
        if verdict.retry_after_seconds:
            self.breaker.asked_to_wait(now, verdict.retry_after_seconds)

    async def _settle(self, grant: Granted, settlement: Settlement) -> None:
        """Say what became of it, again and again while the reservation holds: the token makes a repeat safe."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                (outcome,) = await self.runtime.lane("outbox.settle").submit(Settle((settlement,), BY_SERVICE))
            except Refusal as refusal:
                outcome = refusal
            if not isinstance(outcome, Refusal):
                return
            late = self.runtime.clock.now() > grant.expires_at or (self.runtime.draining.is_set() and pause > 1)
            if late or not outcome.code.retryable:  # then its lease ends, and the message is unknown
                log.warning("delivery_not_settled", destination=self.destination.name, code=outcome.code.name)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _released(grant: Granted) -> Settlement:
    return make_settlement(grant.id, grant.token, Outcome.RELEASED, reason=ReleaseReason.SHUTDOWN)


def _settlement(grant: Granted, reply: Reply, verdict: Verdict) -> Settlement:
    """A retry that only an idempotent destination bears is sent as a doubt: the transaction that settles knows best."""
    told: dict[str, Any] = {"category": verdict.category, "message": verdict.detail}
    outcome = _OUTCOMES[verdict.outcome]
    if outcome is Outcome.SENT:
        return make_settlement(grant.id, grant.token, outcome)
    if outcome is Outcome.RETRY and judge(reply, idempotent=False).outcome is not Verdicts.RETRY:
        return make_settlement(grant.id, grant.token, Outcome.UNKNOWN, again_if_idempotent=True, **told)
    if outcome is Outcome.UNKNOWN:
        return make_settlement(grant.id, grant.token, outcome, again_if_idempotent=True, **told)
    delay = verdict.retry_after_seconds if outcome is Outcome.RETRY else None
    return make_settlement(grant.id, grant.token, outcome, delay=delay, **told)
