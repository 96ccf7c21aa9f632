"""Names to addresses, without holding up the event loop or its thread pool."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable

# Gives the addresses of a host as text; raises OSError or UnicodeError if it has none.
Resolve = Callable[[str], Awaitable[list[str]]]


class Resolver:
    """The system's resolver, a thread for each name that is being looked up.

    getaddrinfo cannot be interrupted, and may hang as long as the system's resolver tries. So a lookup has a thread of its
    own (a daemon: it never delays the end of the process) that goes on when its caller has left, and all who ask for the
    same name meanwhile share it: one dead name server holds one thread per name, at most `limit` in all.
    """

    def __init__(self, limit: int = 200) -> None:
        self._limit = limit
        self._running: dict[str, asyncio.Future[list[str]]] = {}

    async def __call__(self, host: str) -> list[str]:
        # an address, in any of the forms that libraries take, needs no lookup
        with contextlib.suppress(OSError, UnicodeError):
            return _look_up(host, socket.AI_NUMERICHOST)
        lookup = self._running.get(host)
        if lookup is None:
            if len(self._running) >= self._limit:
                raise OSError("too many names are being looked up")
            lookup = self._start(host)
        return await asyncio.shield(lookup)

    def _start(self, host: str) -> asyncio.Future[list[str]]:
        loop = asyncio.get_running_loop()
        lookup: asyncio.Future[list[str]] = loop.create_future()
        lookup.add_done_callback(lambda done: done.cancelled() or done.exception())  # its callers may all have left

        def end(addresses: list[str], fault: BaseException | None) -> None:
            del self._running[host]
            if fault is None:
                lookup.set_result(addresses)
            else:
                lookup.set_exception(fault)

        def run() -> None:
            addresses: list[str] = []
            fault: Exception | None = None
            try:
                addresses = _look_up(host)
            except Exception as raised:  # noqa: BLE001 - handed to whoever waits
                fault = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end, addresses, fault)

        threading.Thread(target=run, name="tenure-lookup", daemon=True).start()
        self._running[host] = lookup
        return lookup


def _look_up(host: str, flags: int = 0) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
