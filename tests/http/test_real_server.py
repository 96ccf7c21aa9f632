"""What only a real server and a real socket show: hang-ups, bodies that never end, bodies refused unread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.http.conftest import Service

pytestmark = pytest.mark.anyio
BODY = json.dumps({"queue": "q", "payload": 1}).encode()


def request(path: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def answered(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of one answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(status.split()[1]), headers, json.loads(await reader.readexactly(int(headers["content-length"])))


async def test_a_handler_sees_that_its_client_hung_up(service: Service) -> None:
    async with service.served() as port, asyncio.timeout(20):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("/v1/demo/wait", f"Content-Length: {len(BODY)}", body=BODY))
        assert await service.app.state.seen.get() == "waiting"
        await hang_up(writer)
        assert await service.app.state.seen.get() == "gone"


async def test_many_waiting_calls_leave_nothing_behind(service: Service) -> None:
    async with service.served() as port, asyncio.timeout(60):
        before = len(asyncio.all_tasks())
        writers = []
        for _ in range(300):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request("/v1/demo/wait", f"Content-Length: {len(BODY)}", body=BODY))
            writers.append(writer)
        for _ in writers:
            assert await service.app.state.seen.get() == "waiting"
        for writer in writers:
            await hang_up(writer)
        for _ in writers:
            assert await service.app.state.seen.get() == "gone"
        while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - nothing announces the end of the server's tasks
            await asyncio.sleep(0)


async def test_a_client_that_hangs_up_in_mid_body_is_no_failure(
    service: Service, captured_logs: list[dict[str, Any]]
) -> None:
    async with service.served() as port, asyncio.timeout(20):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("/v1/demo/echo", "Content-Length: 1000", body=BODY))
        await writer.drain()
        await hang_up(writer)
        while not [one for one in captured_logs if one["event"] == "request"]:  # noqa: ASYNC110 - the line itself is awaited
            await asyncio.sleep(0)
    (line,) = [one for one in captured_logs if one["event"] == "request"]
    assert line["status"] == 499
    assert not [one for one in captured_logs if one["level"] == "error"]


async def test_a_body_announced_too_large_is_refused_before_it_is_sent(start: Callable[..., Any]) -> None:
    async with start(max_body_bytes=65536) as service, service.served() as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("/v1/demo/echo", "Content-Length: 999999999999"))
        status, headers, problem = await answered(reader)
        assert (status, problem["code"], headers["connection"]) == (413, "payload_too_large", "close")
        assert await reader.read() == b""
        await hang_up(writer)


async def test_a_chunked_body_is_cut_off_at_the_limit(start: Callable[..., Any]) -> None:
    async with start(max_body_bytes=65536) as service, service.served() as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("/v1/demo/echo", "Transfer-Encoding: chunked"))
        for _ in range(17):  # never ends
            writer.write(b"1000\r\n" + b" " * 4096 + b"\r\n")
        status, _, problem = await answered(reader)
        assert (status, problem["code"]) == (413, "payload_too_large")
        await hang_up(writer)


async def test_chunks_make_one_body(service: Service) -> None:
    async with service.served() as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        chunks = b"".join(b"%x\r\n%b\r\n" % (1, BODY[index : index + 1]) for index in range(len(BODY))) + b"0\r\n\r\n"
        writer.write(request("/v1/demo/echo", "Transfer-Encoding: chunked", body=chunks))
        status, _, answer = await answered(reader)
        assert (status, answer["payload"], answer["size"]) == (201, 1, len(BODY))
        writer.write(request("/v1/demo/echo", f"Content-Length: {len(BODY)}", body=BODY))
        status, _, answer = await answered(reader)
        assert status == 201
        await hang_up(writer)
