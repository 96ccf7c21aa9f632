"""How many calls may be under way: in all, and to one host, so that a host that hangs leaves room for the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """`async with slots.one(host)`: waits, first come first served, for a place of the host's, then for one of all."""

    def __init__(self, in_all: int, for_one: int) -> None:
        self._all = asyncio.Semaphore(in_all)
        self._for_one = for_one
        self._hosts: dict[str, tuple[asyncio.Semaphore, int]] = {}  # and how many use or wait for it

    @asynccontextmanager
    async def one(self, host: str) -> AsyncIterator[None]:
        own, users = self._hosts.get(host) or (asyncio.Semaphore(self._for_one), 0)
        self._hosts[host] = (own, users + 1)
        try:
            async with own, self._all:  # in this order: who waits for a busy host holds no place of the others
                yield
        finally:
            own, users = self._hosts[host]
            if users > 1:
                self._hosts[host] = (own, users - 1)
            else:
                del self._hosts[host]
