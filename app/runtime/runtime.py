"""`Runtime`: what one process runs. Built by `app.main`, started and ended by the server's lifespan."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.clock import Clock
from app.db.database import Database
from app.runtime.desk import Desk
from app.runtime.lanes import Crew, Deadlines, Lane, LaneSpec
from app.runtime.loops import Loop, LoopSpec
from app.settings import Settings

# threads of each crew on a server database; "busy" ones are as many as `lane_threads` says
BUSY_CREWS = ("enqueue", "settle")
CREWS = ("enqueue", "claim", "settle", "renew", "control", "sweep", "read", "figures")


@dataclass(slots=True)
class Runtime:
    """Lanes, desks and loops of this process, by name. Everything but the crews' threads lives in the event loop."""

    settings: Settings
    database: Database
    token_key: bytes = b""
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    desks: dict[str, Desk] = field(default_factory=dict)
    loops: dict[str, Loop] = field(default_factory=dict)
    before_start: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    before_stop: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    _lanes: dict[str, Lane] = field(default_factory=dict)
    _crews: dict[str, Crew] = field(default_factory=dict)
    _states: dict[str, Any] = field(default_factory=dict)
    _loop: asyncio.AbstractEventLoop | None = None

    @property
    def clock(self) -> Clock:
        return self.database.clock

    def lane(self, name: str) -> Lane:
        return self._lanes[name]

    @property
    def lanes(self) -> Sequence[Lane]:
        return tuple(self._lanes.values())

    @property
    def threads(self) -> int:
        """Database threads of this process; each holds at most two connections (writing, reading)."""
        return sum(crew.threads for crew in self._crews.values())

    def crews_alive(self) -> bool:
        return all(crew.alive() for crew in self._crews.values())

    def state(self, name: str) -> Any:
        """The in-memory object that a primitive keeps in this process; never the truth, always rebuildable."""
        return self._states[name]

    def keep(self, name: str, state: Any) -> None:
        self._states[name] = state

    def add_lanes(self, specs: Sequence[LaneSpec]) -> None:
        for spec in specs:
            crew = self._crew(spec)
            lane = Lane(spec, self.settings.lane_capacity, crew, Deadlines(self.settings.request_timeout_seconds))
            crew.serve(lane)
            self._lanes[spec.name] = lane

    def _crew(self, spec: LaneSpec) -> Crew:
        # SQLite has one writer: all writing lanes share its thread, and so its fsync queue is fair
        name = "writer" if self.database.dialect.single_writer and not spec.reads else spec.crew
        if name not in self._crews:
            threads = self.settings.lane_threads if name in BUSY_CREWS else 1
            self._crews[name] = Crew(name, self.database, threads)
        return self._crews[name]

    def add_loops(self, specs: Sequence[LoopSpec]) -> None:
        for spec in specs:
            self.loops[spec.name] = Loop(spec, self)

    async def start(self) -> None:
        """Start threads, then what primitives prepare (`before_start`), then desks and loops."""
        self._loop = asyncio.get_running_loop()
        _calm_collector()
        for crew in self._crews.values():
            crew.start()
        for prepare in self.before_start:
            await prepare()
        for desk in self.desks.values():
            desk.start()
        for loop in self.loops.values():
            loop.start()

    def soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Call into the event loop from a database thread (an op's `on_commit`). A loop that has ended hears nothing."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)

    async def stop(self) -> None:
        """Answer who waits, end what primitives began (`before_stop`) and the loops, let the lanes finish what they hold, close
        connections.
        """
        self.draining.set()
        await asyncio.gather(*(end() for end in self.before_stop))
        await asyncio.gather(*(loop.stop() for loop in self.loops.values()))
        await asyncio.gather(*(desk.stop() for desk in self.desks.values()))
        await asyncio.gather(*(asyncio.to_thread(crew.close) for crew in self._crews.values()))
        self.database.close()


def _calm_collector() -> None:
    """What was imported stays for ever, and requests leave no cycles: a collector that runs every 700 objects took a fifth
    of the time under load.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
