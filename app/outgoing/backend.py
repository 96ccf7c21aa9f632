"""Connections for one call: only to checked addresses, and with a record of how far the call has come.

The name is looked up here, all its addresses are judged, and the connection is opened to one of those very addresses, so
that a second, different answer of a name server has nobody to give it to. TLS goes on to verify the name.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any, Literal

import httpcore

from app.outgoing.addresses import Targets, is_address
from app.outgoing.resolving import Resolve

Stage = Literal["waiting", "dns", "connect", "tls"]
MAX_TRIES = 4  # of a host's addresses in one call
# All that is taken from a connection. httpcore passes over any number of 1xx answers, and a chunk may be mostly its frame
MAX_RECEIVED_BYTES = 1024 * 1024


class NotConnected(Exception):
    """No connection was opened; `reason` is one of those of `client.Reply`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Progress:
    """How far a call has come. `maybe_sent` is set before the first byte of the request is handed to a connection."""

    __slots__ = ("cut", "ended", "maybe_sent", "received", "stage", "status")

    def __init__(self) -> None:
        self.stage: Stage = "waiting"
        self.maybe_sent = False
        self.cut = False  # a write failed, so the request did not go out whole; httpcore reads on for an answer
        self.received = 0  # bytes of an answer
        self.ended = False  # the peer has closed its side in good order
        self.status: int | None = None


class WatchedStream(httpcore.AsyncNetworkStream):
    """A connection that records what is done with it. The handshake of TLS does not come through here: it is no request."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, progress: Progress) -> None:
        self._inner = inner
        self._progress = progress

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(max_bytes, timeout)
        self._progress.received += len(data)
        self._progress.ended = not data
        if self._progress.received > MAX_RECEIVED_BYTES:
            raise httpcore.RemoteProtocolError("the answer does not come to its end")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._progress.maybe_sent = True
        try:
            await self._inner.write(buffer, timeout)
        except BaseException:
            self._progress.cut = True
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                inner = await self._inner.start_tls(ssl_context, server_hostname)
        except BaseException:  # also when cancelled, which httpcore's own stream leaves open
            await self._inner.aclose()
            raise
        return WatchedStream(inner, self._progress)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Opens the connection of one call. All limits of time are asyncio's own, so that no cancellation is taken for another."""

    def __init__(self, targets: Targets, resolve: Resolve, progress: Progress) -> None:
        self._targets = targets
        self._resolve = resolve
        self._progress = progress
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """`timeout` holds for the lookup and all tries together."""
        loop = asyncio.get_running_loop()
        end = loop.time() + (timeout if timeout is not None else 3600.0)
        async with asyncio.timeout_at(end):
            self._progress.stage = "dns"
            addresses = await self._checked(host)
            self._progress.stage = "connect"
            stream = await self._first_of(addresses[:MAX_TRIES], port, end)
        self._progress.stage = "tls"
        return WatchedStream(stream, self._progress)

    async def _checked(self, host: str) -> list[str]:
        try:
            addresses = await self._resolve(host)
        except (OSError, UnicodeError):
            addresses = []
        if not addresses or not all(is_address(one) for one in addresses):  # a name would be looked up again, unchecked
            raise NotConnected("dns")
        if not self._targets.allows(host, addresses):
            raise NotConnected("refused_address")
        return addresses

    async def _first_of(self, addresses: list[str], port: int, end: float) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that takes it. Each has an equal share of the time that is left."""
        loop = asyncio.get_running_loop()
        fault: Exception = NotConnected("connect")
        for tried, address in enumerate(addresses):
            share = max(0.0, end - loop.time()) / (len(addresses) - tried)
            try:
                async with asyncio.timeout(share):
                    return await self._inner.connect_tcp(address, port)
            except (httpcore.ConnectError, TimeoutError) as failed:
                fault = failed
        raise fault

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise NotConnected("refused_address")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)
