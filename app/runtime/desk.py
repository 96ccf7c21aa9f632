"""A desk holds the waiting claims of this process. They cost no thread, no connection and no query each.

Three things make it try again: a claim that arrives, work that this process enqueued (`wake`), and one jittered poll for
what other replicas enqueued (`peek`, one statement whatever the number of waiting claims). A round serves all the claims
that may be served in one transaction, the one that waited longest first. A caller that hung up is dropped before the round;
what was claimed for one that left meanwhile is given back at once and costs its job nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from app.errors import DATABASE_UNAVAILABLE, OVERLOADED, Refusal

log = structlog.get_logger("tenure.desk")

ROUND_CLAIMS = 256
POLL_FINDS = 64  # how many waiting claims one flow found by the poll calls up, unless said; a full round calls up more


class ClaimLike(Protocol):
    """What a desk must know of a claim."""

    @property
    def places(self) -> Sequence[Hashable]:
        """Where its work may appear (queues)."""

    @property
    def identity(self) -> Hashable | None:
        """Equal for a repeat of the same claim; None if the caller named none."""

    @property
    def limit(self) -> int:
        """How much it takes at most."""

    def wants(self, flow: Any) -> bool:
        """Whether it may be given work of this flow."""


@dataclass(eq=False, slots=True)
class _Waiting:
    claim: ClaimLike
    future: asyncio.Future[Any]
    gone: Callable[[], bool]
    once: bool  # answered by its next round, whatever that brings
    number: int  # of its arrival
    fresh: bool = True
    left: bool = False


@dataclass(slots=True)
class DeskPorts:
    """What a desk is wired to. `serve`: one round of claims to outcomes (a Refusal as a value). `peek`: the flows of these
    places that have work now. `give_back`: undo a grant that reached nobody. `found`: whether an outcome holds anything.
    """

    serve: Callable[[list[Any]], Awaitable[Sequence[Any]]]
    peek: Callable[[list[Hashable]], Awaitable[Sequence[Hashable]]]
    give_back: Callable[[Any], Awaitable[None]]
    found: Callable[[Any], bool]


@dataclass(slots=True)
class Desk:
    """The waiting claims of one primitive. Everything here runs in the event loop."""

    ports: DeskPorts
    poll_seconds: float
    capacity: int
    deadline_seconds: float
    draining: asyncio.Event
    poll_finds: int = POLL_FINDS
    _waiting: dict[_Waiting, None] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _places: Counter[Hashable] = field(default_factory=Counter)
    _signalled: Counter[Hashable] = field(default_factory=Counter)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _at_round: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        bodies = (("desk rounds", self._rounds), ("desk poll", self._poll), ("desk drain", self._drain))
        self._tasks = [asyncio.create_task(body(), name=name) for name, body in bodies]

    async def stop(self) -> None:
        """End the tasks; a round that is under way is finished first, for it may hold grants that somebody waits for."""
        async with self._at_round:
            for task in self._tasks:
                task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self) -> list[Any]:
        """The claims that wait here at this moment, the longest waiting first."""
        return [entry.claim for entry in self._waiting]

    def wake(self, flows: Mapping[Any, int]) -> None:
        """So many things of these flows have come to be available."""
        if self._waiting or self._places:
            self._signalled.update(flows)
            self._changed.set()

    async def claim(self, claim: ClaimLike, wait_seconds: float, gone: Callable[[], bool]) -> Any:
        """Try at once, then wait up to `wait_seconds` for work. Gives the outcome, or None if there was nothing.

        Raises: the Refusal that the round gave; `overloaded` when too many claims wait here.
        """
        if len(self._waiting) >= self.capacity:
            raise Refusal(OVERLOADED, "Too many claims are waiting in this process.", retry_after_seconds=1)
        if self.draining.is_set():
            return None
        future = asyncio.get_running_loop().create_future()
        entry = _Waiting(claim, future, gone, wait_seconds <= 0, next(self._numbers))
        self._supersede(claim.identity)
        self._waiting[entry] = None
        self._places.update(claim.places)
        self._changed.set()
        try:
            if not entry.once:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_seconds):
                        await asyncio.shield(entry.future)
            outcome = await self._last_word(entry)
        finally:
            entry.left = True
            self._waiting.pop(entry, None)
            self._places.subtract(claim.places)
        if isinstance(outcome, Refusal):
            raise outcome
        return outcome

    async def _last_word(self, entry: _Waiting) -> Any:
        """The wait is over. A claim that was not tried yet, or that stands in a round at this moment, waits for that."""
        if entry not in self._waiting or entry.fresh:
            entry.once = True
            try:
                async with asyncio.timeout(self.deadline_seconds):
                    return await asyncio.shield(entry.future)
            except TimeoutError:  # whatever the round brings now goes back: the entry is marked as left
                detail = "The database did not answer in time."
                raise Refusal(DATABASE_UNAVAILABLE, detail, retry_after_seconds=1) from None
        return None

    def _supersede(self, identity: Hashable | None) -> None:
        """The same claim again: the caller has given the earlier connection up."""
        if identity is None:
            return
        for other in [one for one in self._waiting if one.claim.identity == identity]:
            del self._waiting[other]
            other.future.set_result(None)

    # -- the tasks -----------------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        while True:
            await self._changed.wait()
            async with self._at_round:
                self._changed.clear()
                standing = self._standing()
                if standing:
                    try:
                        await self._round(standing)
                    except Exception as error:  # the desk must outlive every fault; its claims are told
                        log.error("desk_round_failed", error=type(error).__name__, exc_info=error)
                        self._settle_all(standing)

    def _standing(self) -> list[_Waiting]:
        """Who takes part in the next round: newcomers, and as many others as the work that has appeared can serve; the
        longest waiting first. They leave the line.
        """
        signalled, self._signalled = self._signalled, Counter()
        chosen: list[_Waiting] = []
        for entry in list(self._waiting):
            if len(chosen) == ROUND_CLAIMS:
                self._signalled.update(+signalled)  # the others stand in the next round
                self._changed.set()
                break
            flow = next((one for one, count in signalled.items() if count > 0 and entry.claim.wants(one)), None)
            if flow is None and not entry.fresh:
                continue
            del self._waiting[entry]
            if entry.gone():
                entry.future.set_result(None)
                continue
            if flow is not None:
                signalled[flow] -= entry.claim.limit
            entry.fresh = False
            chosen.append(entry)
        return chosen

    async def _round(self, standing: list[_Waiting]) -> None:
        try:
            outcomes = await self.ports.serve([entry.claim for entry in standing])
        except Refusal as refusal:
            outcomes = [refusal] * len(standing)
        back: dict[_Waiting, None] = {}
        for entry, outcome in zip(standing, outcomes, strict=True):
            empty = not isinstance(outcome, Refusal) and not self.ports.found(outcome)
            if empty and not (entry.once or entry.left or self.draining.is_set()):
                back[entry] = None
            else:
                await self._answer(entry, None if empty else outcome)
        for entry in list(back):
            if entry.once or entry.left:  # its wait ended while others were answered
                del back[entry]
                await self._answer(entry, None)
        # everyone to his old place: a newcomer that got nothing stands behind those who wait for longer
        self._waiting = dict.fromkeys(sorted((*back, *self._waiting), key=lambda entry: entry.number))

    async def _answer(self, entry: _Waiting, outcome: Any) -> None:
        if entry.left or entry.gone():
            if outcome is not None and not isinstance(outcome, Refusal):
                await self._give_back(outcome)
            outcome = None
        if not entry.future.done():
            entry.future.set_result(outcome)

    async def _give_back(self, outcome: Any) -> None:
        try:
            await self.ports.give_back(outcome)
        except Exception as error:  # the others of the round must get theirs; this one's leases end by themselves
            log.error("desk_give_back_failed", error=type(error).__name__, exc_info=error)

    def _settle_all(self, standing: list[_Waiting]) -> None:
        for entry in standing:
            if not entry.future.done():
                entry.future.set_result(None)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self.poll_seconds * random.uniform(0.75, 1.25))
            places = [place for place, count in self._places.items() if count > 0]
            self._places = Counter({place: self._places[place] for place in places})
            if not places:
                continue
            try:
                flows = await self.ports.peek(places)
            except Refusal as refusal:
                log.info("desk_poll_refused", code=refusal.code.name)
            except Exception as error:  # as above
                log.error("desk_poll_failed", error=type(error).__name__, exc_info=error)
            else:
                if flows:
                    self.wake(dict.fromkeys(flows, self.poll_finds))

    async def _drain(self) -> None:
        """When the process is told to end, every waiting claim is answered empty at once."""
        await self.draining.wait()
        for entry in list(self._waiting):
            if not entry.future.done():
                entry.future.set_result(None)
        self._waiting.clear()
