"""`create_app`: the only assembler. It puts settings, database, lanes, loops and routes together; nothing else does."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType

from fastapi import FastAPI

from app import settings as settings_module
from app.db import migrate
from app.db import ops as service_ops
from app.db.database import Database
from app.errors import StartupProblem
from app.http.application import build
from app.outgoing.client import Outgoing
from app.outgoing.vault import Vault
from app.registry import PRIMITIVES
from app.runtime.clearing import ClearingWatch
from app.runtime.runtime import Runtime
from app.runtime.service import SERVICE_LANES, SERVICE_LOOPS
from app.settings import Settings

EXIT_SCHEMA = 3  # what uvicorn's own supervisor also takes as "do not start me again"


def create_app(settings: Settings | None = None, *, database: Database | None = None, loops: bool = True) -> FastAPI:
    """The ASGI application, with its database open and its schema checked. Its lifespan starts and ends the runtime.

    `database`: one that is open already, which stays the caller's to shut down. `loops`: False leaves the sweeps to
    `tenure loops`. Raises: StartupProblem with one clear line.
    """
    chosen = settings or settings_module.load()
    runtime = assemble(chosen, database or open_database(chosen), loops=loops)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        restore = drain_on_signals(runtime)
        await runtime.start()
        try:
            yield
        finally:
            await runtime.stop()
            restore()
            if database is None:
                await asyncio.to_thread(runtime.database.shutdown)

    return build(
        runtime,
        [primitive.router for primitive in PRIMITIVES],
        checks=[primitive.checks for primitive in PRIMITIVES if primitive.checks is not None],
        collectors=[primitive.collect for primitive in PRIMITIVES if primitive.collect is not None],
        pages={code: example for primitive in PRIMITIVES for code, example in primitive.pages.items()},
        lifespan=lifespan,
    )


def open_database(settings: Settings) -> Database:
    """Open the database and see that its schema serves this release. Only the embedded database is migrated here: a shared
    one may serve other releases, so that is an operator's step (`tenure migrate`).
    """
    url = settings.database_url.get_secret_value()
    database = Database(url, sqlite_synchronous=settings.sqlite_synchronous)
    if database.dialect.single_writer:
        migrate.upgrade(url)
    database.open()
    state = migrate.state(database)
    if state in ("behind", "empty"):
        database.shutdown()
        raise StartupProblem(
            f"the database schema is {state}: run `tenure migrate` (this release needs revision {migrate.required()})",
            EXIT_SCHEMA,
        )
    return database


def assemble(settings: Settings, database: Database, *, loops: bool) -> Runtime:
    """A runtime with the lanes, desks and loops of every primitive; nothing of it runs yet."""
    runtime = Runtime(settings, database)
    database.host = runtime
    (runtime.token_key,) = database.run(service_ops.ensure_token_key, [None])
    runtime.add_lanes(SERVICE_LANES)
    runtime.add_loops(SERVICE_LOOPS)
    runtime.keep("clearing", ClearingWatch(runtime))
    runtime.keep("vault", Vault.from_settings(settings))
    _keep_outgoing(runtime)
    for primitive in PRIMITIVES:
        runtime.add_lanes(primitive.lanes)
        if primitive.wire is not None:
            primitive.wire(runtime)
        runtime.add_loops(primitive.loops if loops else [loop for loop in primitive.loops if loop.everywhere])
    database.close()
    return runtime


def _keep_outgoing(runtime: Runtime) -> None:
    """What leaves the service goes through one client; its calls end before the database threads do."""
    outgoing = Outgoing.from_settings(runtime.settings)

    async def open_() -> None:
        await outgoing.__aenter__()

    runtime.keep("outgoing", outgoing)
    runtime.before_start.append(open_)


def drain_on_signals(runtime: Runtime) -> Callable[[], None]:
    """Let waiting claims answer the moment a signal comes: the server itself waits for all its connections to end first,
    and only then runs the end of the lifespan. The server's own handler is called as before. Gives what undoes it.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def handler(received: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(runtime.draining.set)
        servers_own = before[signal.Signals(received)]
        if callable(servers_own):
            servers_own(received, frame)

    def restore() -> None:
        for number, servers_own in before.items():
            signal.signal(number, servers_own)

    for number in before:
        signal.signal(number, handler)
    return restore
