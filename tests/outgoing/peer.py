"""A server on loopback that does with each connection what a test says, and counts what comes in."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


class Connection:
    """One accepted connection. What breaks because the client went away ends it in silence."""

    def __init__(self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._peer = peer
        self.reader = reader
        self.writer = writer

    async def request(self) -> bytes:
        """Read one whole request, and count it."""
        head = await self.head()
        length = next(
            (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        whole = head + await self.reader.readexactly(length)
        self._peer.requests.append(whole)
        self._peer.arrived.set()
        return whole

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def write(self, data: bytes) -> None:
        if self.writer.is_closing():  # uvloop says so by a RuntimeError, and asyncio by nothing
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()
        self._peer.written += len(data)

    async def answer(self, status: int, *fields: str, body: bytes = b"") -> None:
        await self.write(
            "\r\n".join([f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *fields, "", ""]).encode() + body
        )

    async def hang(self) -> None:
        """Wait until the test is over."""
        await self._peer.over.wait()

    async def pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._peer.over.wait(), seconds)

    def reset(self) -> None:
        """Answer with RST."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class Peer:
    def __init__(self) -> None:
        self.port = 0
        self.scheme = "http"
        self.connections = 0
        self.requests: list[bytes] = []
        self.written = 0
        self.arrived = asyncio.Event()  # a whole request
        self.over = asyncio.Event()

    def url(self, host: str = "127.0.0.1", path: str = "/hook") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"


Act = Callable[[Connection], Awaitable[None]]


@asynccontextmanager
async def serving(
    act: Act, *, host: str = "127.0.0.1", port: int = 0, context: ssl.SSLContext | None = None
) -> AsyncIterator[Peer]:
    """Run a server for the length of the block. `act` gets each connection, which is closed when it returns."""
    peer = Peer()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        peer.connections += 1
        try:
            await act(Connection(peer, reader, writer))
        except (OSError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, host, port, ssl=context, ssl_handshake_timeout=30 if context else None)
    peer.port = server.sockets[0].getsockname()[1]
    peer.scheme = "https" if context else "http"
    try:
        yield peer
    finally:
        peer.over.set()
        server.close()
        if tasks:
            await asyncio.wait(tasks, timeout=10)


async def ok(connection: Connection) -> None:
    await connection.request()
    await connection.answer(200, body=b"thanks")
