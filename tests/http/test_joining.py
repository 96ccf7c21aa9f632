"""What the server's transport sends at once: the head of an answer goes out with its body."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from app.http.protocol import _Joining

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Sent:
    """A transport that keeps what it is told to send."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed, "nothing may be written to a closed transport"
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def joined(sent: Sent) -> Any:
    return _Joining(cast("asyncio.Transport", sent), asyncio.get_running_loop())


async def test_a_head_and_its_body_are_one_write() -> None:
    sent = Sent()
    joining = joined(sent)
    joining.write(HEAD)
    joining.write(b"{}")
    await asyncio.sleep(0)
    assert sent.writes == [HEAD + b"{}"]


async def test_a_head_whose_body_takes_its_time_is_not_held_back() -> None:
    sent = Sent()
    joining = joined(sent)
    joining.write(HEAD)
    await asyncio.sleep(0)
    assert sent.writes == [HEAD]
    joining.write(b"{}")
    assert sent.writes == [HEAD, b"{}"]


async def test_a_close_sends_what_was_held() -> None:
    sent = Sent()
    joining = joined(sent)
    joining.write(HEAD)
    joining.close()
    await asyncio.sleep(0)
    assert (sent.writes, sent.closed) == ([HEAD], True)


async def test_what_was_held_for_a_client_that_hung_up_is_dropped() -> None:
    sent = Sent()
    joining = joined(sent)
    joining.write(HEAD)
    sent.closed = True
    await asyncio.sleep(0)
    assert sent.writes == []
    assert joining.is_closing(), "all but writing is the transport's own"
