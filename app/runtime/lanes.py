"""Lanes: every command of a request goes through one, and many commands share one transaction.

A lane is a bounded queue for one op. A crew is a few database threads that serve some lanes: a thread takes all that waits
in the lane whose head has waited longest (up to a limit), runs the op once, commits, and wakes each caller. There is no
artificial delay: alone, a command has single-command latency; under load batches grow by themselves.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from app.clock import steady_micros
from app.db.database import Database
from app.db.tx import Op
from app.errors import DATABASE_UNAVAILABLE, INTERNAL, OVERLOADED, Refusal

log = structlog.get_logger("tenure.lanes")


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """One lane, as a primitive's manifest declares it.

    `crew` names the threads that serve it; crews keep renewals apart from claims, and sweeps from both. `reads` lanes run
    on a reading connection, one command at a time, or with `together` all that wait (their op takes many commands, as a
    writing one does). `most_items` and `most_bytes` bound one transaction.
    """

    name: str
    op: Op | Callable[..., Any]
    crew: str
    reads: bool = False
    together: bool = False
    most_items: int = 500
    most_bytes: int = 4 * 1024 * 1024


@dataclass(slots=True)
class _Item:
    command: Any
    weight: int
    size: int
    future: asyncio.Future[Any]
    since: int


@dataclass(slots=True)
class Deadlines:
    """Ends the wait for answers that do not come in time. One timer serves all, since each may wait equally long: a timer
    for each command was a twentieth of a small request.
    """

    seconds: float
    _open: deque[tuple[float, asyncio.Future[Any]]] = field(default_factory=deque)
    _timer: asyncio.TimerHandle | None = None

    def watch(self, future: asyncio.Future[Any]) -> None:
        """Answer `future` with a Refusal unless somebody else has answered it in time."""
        while self._open and self._open[0][1].done():
            self._open.popleft()
        loop = future.get_loop()
        self._open.append((loop.time() + self.seconds, future))
        if self._timer is None:
            self._timer = loop.call_later(self.seconds, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        while self._open and (self._open[0][0] <= now or self._open[0][1].done()):
            _, future = self._open.popleft()
            if not future.done():
                late = "The database did not answer in time."
                future.set_result(Refusal(DATABASE_UNAVAILABLE, late, retry_after_seconds=1))
        self._timer = loop.call_at(self._open[0][0], self._look, loop) if self._open else None


@dataclass(slots=True)
class Lane:
    """The queue of one op in this process. `submit` from the event loop; the crew's threads do the rest."""

    spec: LaneSpec
    capacity: int
    crew: Crew
    deadlines: Deadlines
    waiting: deque[_Item] = field(default_factory=deque)
    weight: int = 0
    served: int = 0
    batches: int = 0

    async def submit(self, command: Any, *, weight: int = 1, size: int = 0) -> Any:
        """Queue `command` and wait for its outcome. A Refusal among the outcomes is raised here.

        `weight` is how many things the command touches, `size` how many bytes it carries. Raises: Refusal `overloaded`
        when the lane is full; `database_unavailable` when no answer came in time (what it did is found again by its
        identity); `internal` when the op itself failed.
        """
        future = self.put(command, weight=weight, size=size)
        self.deadlines.watch(future)
        outcome = await future
        if isinstance(outcome, Refusal):
            raise outcome
        return outcome

    def put(self, command: Any, *, weight: int = 1, size: int = 0) -> asyncio.Future[Any]:
        """Queue without waiting; the future yields the outcome (a Refusal as a value)."""
        return self.put_many([(command, weight, size)])[0]

    def put_many(self, commands: Sequence[tuple[Any, int, int]]) -> list[asyncio.Future[Any]]:
        """Queue several commands under one hold of the lock, so that one transaction takes them together."""
        if self.weight + sum(weight for _, weight, _ in commands) > self.capacity or self.crew.closing:
            raise Refusal(OVERLOADED, "Too many commands are waiting in this process.", retry_after_seconds=1)
        loop = asyncio.get_running_loop()
        since = steady_micros()
        items = [_Item(command, weight, size, loop.create_future(), since) for command, weight, size in commands]
        self.crew.add(self, items)
        return [item.future for item in items]

    def take(self) -> list[_Item]:
        """The next batch; the crew's lock is held. At least one item, however heavy."""
        batch: list[_Item] = []
        weight = size = 0
        most = 1 if self.spec.reads and not self.spec.together else self.spec.most_items
        while self.waiting and (
            not batch
            or (weight + self.waiting[0].weight <= most and size + self.waiting[0].size <= self.spec.most_bytes)
        ):
            item = self.waiting.popleft()
            weight, size = weight + item.weight, size + item.size
            batch.append(item)
        self.weight -= weight
        self.served += len(batch)
        self.batches += 1
        return batch


class Crew:
    """Some database threads and the lanes that they serve."""

    def __init__(self, name: str, database: Database, threads: int) -> None:
        self.name = name
        self.closing = False
        self._database = database
        self._lanes: list[Lane] = []
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"tenure-{name}-{number}", daemon=True)
            for number in range(threads)
        ]

    def serve(self, lane: Lane) -> None:
        self._lanes.append(lane)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def threads(self) -> int:
        return len(self._threads)

    def alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def add(self, lane: Lane, items: list[_Item]) -> None:
        with self._changed:
            lane.waiting.extend(items)
            lane.weight += sum(item.weight for item in items)
            self._changed.notify()

    def close(self) -> None:
        """Take nothing new, finish what waits, end the threads. Blocks until they have ended."""
        with self._changed:
            self.closing = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _next(self) -> tuple[Lane, list[_Item]] | None:
        with self._changed:
            while True:
                ready = [lane for lane in self._lanes if lane.waiting]
                if ready:
                    lane = min(ready, key=lambda one: one.waiting[0].since)
                    return lane, lane.take()
                if self.closing:
                    return None
                self._changed.wait()

    def _work(self) -> None:
        while (work := self._next()) is not None:
            lane, batch = work
            outcomes = self._run(lane.spec, [item.command for item in batch])
            _answer(batch, outcomes)
        self._database.close()

    def _run(self, spec: LaneSpec, commands: list[Any]) -> Sequence[Any]:
        try:
            if spec.together:
                return list(self._database.read(spec.op, commands))
            if spec.reads:
                return [self._database.read(spec.op, commands[0])]
            return self._database.run(spec.op, commands)
        except Refusal as refusal:
            return [refusal] * len(commands)
        except Exception as error:  # the thread must live; what failed is logged, and its callers are told
            if len(commands) == 1:
                log.error("op_failed", lane=spec.name, error=type(error).__name__, exc_info=error)
                return [Refusal(INTERNAL, "Tenure failed at this; it was logged.")]
            # one of many is guilty: run them one by one, so that only that one fails
            return [self._run(spec, [command])[0] for command in commands]


def _answer(batch: list[_Item], outcomes: Sequence[Any]) -> None:
    loop = batch[0].future.get_loop()

    def resolve() -> None:
        for item, outcome in zip(batch, outcomes, strict=True):
            if not item.future.done():
                item.future.set_result(outcome)

    try:
        loop.call_soon_threadsafe(resolve)
    except RuntimeError:
        log.warning("answers_dropped", count=len(batch))  # the loop has ended: nobody is left to be told
