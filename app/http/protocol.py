"""The server's HTTP/1.1 protocol, with a limit on the head of a request and problems for what is no HTTP.

The parser keeps a head in memory until it is whole, before any of our code may look at it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uuid_utils
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.errors import VALIDATION_FAILED, Refusal
from app.http.problem import MEDIA_TYPE, problem_bytes

MOST_HEAD_BYTES = 64 * 1024
LINGER_SECONDS = 1.0

_REASONS = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}


class _Joining:
    """A transport that sends the head of an answer together with what follows it: one system call and one packet, not two."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.endswith(b"\r\n\r\n"):
            self._head = data
            self._loop.call_soon(self._flush)  # for an answer that takes its time with its body
            return
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._head = b""


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_bytes = 0
        self._in_head = True
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = _Joining(transport, self.loop)  # type: ignore[assignment]  # everything else is passed on

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MOST_HEAD_BYTES and not self._refused:
            self._refuse(431, f"The URL and the headers of a request may have {MOST_HEAD_BYTES} bytes together.")

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True  # what follows on this connection is the next head
        self._head_bytes = 0

    def send_400_response(self, msg: str) -> None:
        """What the parser cannot read."""
        self._refuse(400, "This is not a valid HTTP/1.1 request.")

    def _refuse(self, status: int, detail: str) -> None:
        request_id = str(uuid_utils.uuid7())
        body = problem_bytes(Refusal(VALIDATION_FAILED, detail, status=status), request_id)
        head = (
            b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\nx-request-id: %s\r\nconnection: close\r\n\r\n"
        ) % (status, _REASONS[status], MEDIA_TYPE.encode(), len(body), request_id.encode())
        self.transport.write(head + body)
        # to close while bytes come in would reset the connection, and the answer might never be read
        self._refused = True
        self.loop.call_later(LINGER_SECONDS, self.transport.close)
