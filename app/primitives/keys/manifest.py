"""What API keys bring to a process: lanes, the directory that judges requests, and the loops that keep it."""

from __future__ import annotations

from app.clock import MICROS
from app.http.auth import Directory, Entry
from app.primitives.keys import ops
from app.primitives.keys.model import ApiKey
from app.primitives.keys.routes import router
from app.runtime.lanes import LaneSpec
from app.runtime.loops import LoopSpec
from app.runtime.primitive import Primitive
from app.runtime.runtime import Runtime

TOUCH_MICROS = 60 * MICROS

LANES = (
    LaneSpec("keys.create", ops.create, "control"),
    LaneSpec("keys.revoke", ops.revoke, "control"),
    LaneSpec("keys.touch", ops.touch, "sweep"),
    LaneSpec("keys.list", ops.list_keys, "read", reads=True),
    LaneSpec("keys.directory", ops.all_keys, "renew", reads=True),
)


def entry(key: ApiKey) -> Entry:
    return Entry(key.principal(), key.digest, key.expires_at, revoked=key.revoked_at is not None)


def wire(runtime: Runtime) -> None:
    """Give the process its directory. It is empty, and every call refused, until the first read."""
    directory = Directory()

    async def refresh() -> None:
        directory.replace([entry(key) for key in await runtime.lane("keys.directory").submit(None)])

    directory.refresh = refresh
    runtime.before_start.append(refresh)
    runtime.keep("keys", directory)


async def _refresh(runtime: Runtime) -> float | None:
    await runtime.state("keys").refresh()
    return None


async def _touch(runtime: Runtime) -> float | None:
    """Write down when keys were last used: each at most once a minute."""
    used = runtime.state("keys").take_used(TOUCH_MICROS)
    if used:
        await runtime.lane("keys.touch").submit(used)
    return None


LOOPS = (
    LoopSpec("keys.directory", 1.5, _refresh, everywhere=True),
    LoopSpec("keys.touch", 20.0, _touch, everywhere=True),
)

KEYS = Primitive("keys", router, lanes=LANES, loops=LOOPS, wire=wire)
