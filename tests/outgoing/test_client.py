"""What the client says became of a call, against servers that do all that servers do."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate

import httpcore
import pytest

from app.outgoing.client import KEPT_BYTES, READ_BYTES, Flight, Outgoing
from app.outgoing.replies import Call, Fate, Reply
from tests.outgoing.conftest import LOOPBACK
from tests.outgoing.peer import Act, Connection, ok, serving

pytestmark = pytest.mark.anyio

SOON = 1.0  # a deadline that a test waits for
LATE = 30.0  # one that it must not reach


def post(url: str, *, timeout: float = LATE, body: bytes = b'{"a": 1}', **headers: str) -> Call:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Call("POST", url, {"content-type": "application/json", **fields}, body, timeout)


async def outcome(outgoing: Outgoing, act: Act, *, timeout: float = LATE, body: bytes = b"{}") -> Reply:
    async with serving(act) as peer:
        return await outgoing.send(post(peer.url(), timeout=timeout, body=body))


@pytest.mark.parametrize("status", [200, 201, 204, 299, 301, 302, 400, 404, 408, 425, 429, 500, 502, 503, 599, 999])
async def test_a_whole_answer_is_answered_with_its_status(outgoing: Outgoing, status: int) -> None:
    async def act(connection: Connection) -> None:
        await connection.request()
        await connection.answer(status, "retry-after: 7", "date: " + formatdate(0, usegmt=True), "x-other: 1")

    reply = await outcome(outgoing, act)
    assert (reply.fate, reply.status, reply.reason, reply.body_complete) == (Fate.ANSWERED, status, "", True)
    assert reply.headers == {"retry-after": "7", "date": "Thu, 01 Jan 1970 00:00:00 GMT"}


async def test_what_is_sent_is_exactly_this_request_once(outgoing: Outgoing, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    body = b'{"b": 1.0, "a": "\xc3\xa9", "a": 12345678901234567890}'
    async with serving(ok) as peer:
        reply = await outgoing.send(post(peer.url(path="/a%20b?c=d%2F"), body=body, X_Key="v"))
        (request,) = peer.requests
    assert reply.body == b"thanks"
    head, _, sent = request.partition(b"\r\n\r\n")
    first, *fields = head.decode().split("\r\n")
    assert first == "POST /a%20b?c=d%2F HTTP/1.1"
    assert sent == body
    assert dict(field.lower().split(": ", 1) for field in fields) == {
        "host": f"127.0.0.1:{peer.port}",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-key": "v",
        "accept": "*/*",
        "user-agent": "tenure",
        "accept-encoding": "identity",
        "connection": "close",
    }


async def hangs_before_reading(connection: Connection) -> None:
    await connection.hang()


async def hangs_after_reading(connection: Connection) -> None:
    await connection.request()
    await connection.hang()


async def trickles_the_head(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\nx: ")
    while True:
        await connection.write(b"y")
        await connection.pause(0.02)


async def trickles_the_body(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        await connection.write(b"y")
        await connection.pause(0.02)


async def says_100_for_ever(connection: Connection) -> None:
    await connection.request()
    while True:
        await connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await connection.pause(0.02)


async def hangs_before_the_last_chunk(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")
    await connection.hang()


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (hangs_before_reading, "timeout"),
        (hangs_after_reading, "timeout"),
        (trickles_the_head, "answer_timeout"),
        (trickles_the_body, "answer_timeout"),
        (says_100_for_ever, "answer_timeout"),
        (hangs_before_the_last_chunk, "answer_timeout"),
    ],
)
async def test_a_peer_cannot_hold_a_call_past_its_time_and_the_request_may_have_been_sent(
    outgoing: Outgoing, act: Act, reason: str
) -> None:
    """altarwed#609: no answer is not an answer. A peer that trickles resets every timeout for a single read."""
    began = asyncio.get_running_loop().time()
    reply = await outcome(outgoing, act, timeout=SOON)
    assert (reply.fate, reply.reason) == (Fate.MAYBE_SENT, reason)
    assert asyncio.get_running_loop().time() - began < LATE / 2


async def test_a_peer_that_does_not_take_the_body_ends_as_maybe_sent(outgoing: Outgoing) -> None:
    reply = await outcome(outgoing, hangs_before_reading, timeout=SOON, body=b"x" * 16_000_000)
    assert (reply.fate, reply.reason) == (Fate.MAYBE_SENT, "timeout")


async def resets_at_once(connection: Connection) -> None:
    connection.reset()


async def resets_after_the_head(connection: Connection) -> None:
    await connection.head()
    connection.reset()


async def resets_after_the_request(connection: Connection) -> None:
    await connection.request()
    connection.reset()


async def resets_in_the_head(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\ncontent-le")
    await connection.pause(0.1)
    connection.reset()


async def resets_in_the_body(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
    await connection.pause(0.1)
    connection.reset()


async def closes_at_once(connection: Connection) -> None:
    pass


async def closes_after_the_request(connection: Connection) -> None:
    await connection.request()


async def closes_in_the_head(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\ncontent-le")


async def closes_in_the_body(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")


async def speaks_garbage(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n\x00\xff\r\n\r\n")
    await connection.hang()


async def has_a_head_without_end(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        await connection.write(b"x-filler: " + b"y" * 1000 + b"\r\n")


async def floods_with_100(connection: Connection) -> None:
    await connection.request()
    while True:
        await connection.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


async def floods_with_frames(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        await connection.write((b"1;" + b"x" * 1000 + b"\r\ny\r\n") * 100)


async def has_a_wrong_chunk(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
    await connection.hang()


@pytest.mark.parametrize(
    ("act", "reasons"),
    [
        (
            resets_at_once,
            {"reset", "no_answer"},
        ),  # by then the kernel had taken the request, or had not: nobody can know
        (resets_after_the_head, {"reset"}),
        (resets_after_the_request, {"reset"}),
        (resets_in_the_head, {"answer_incomplete", "reset"}),
        (resets_in_the_body, {"answer_incomplete", "reset"}),
        (closes_at_once, {"reset", "no_answer"}),
        (closes_after_the_request, {"no_answer"}),
        (closes_in_the_head, {"answer_incomplete"}),
        (closes_in_the_body, {"answer_incomplete"}),
        (speaks_garbage, {"protocol"}),
        (has_a_head_without_end, {"protocol"}),
        (has_a_wrong_chunk, {"protocol"}),
        (floods_with_100, {"protocol"}),
        (floods_with_frames, {"protocol"}),
    ],
)
async def test_a_connection_that_breaks_after_the_request_has_begun_leaves_it_in_doubt(
    outgoing: Outgoing, act: Act, reasons: set[str]
) -> None:
    body = b"x" * 4_000_000 if act is resets_after_the_head else b"{}"
    reply = await outcome(outgoing, act, body=body)
    assert reply.fate is Fate.MAYBE_SENT
    assert reply.reason in reasons


async def test_the_status_of_an_answer_that_broke_off_is_known_and_is_no_answer(outgoing: Outgoing) -> None:
    reply = await outcome(outgoing, closes_in_the_body)
    assert (reply.fate, reply.status, reply.body) == (Fate.MAYBE_SENT, 200, b"")


async def test_a_request_without_an_answer_is_not_sent_again_by_itself(outgoing: Outgoing) -> None:
    async with serving(closes_after_the_request) as peer:
        await outgoing.send(post(peer.url()))
        assert (peer.connections, len(peer.requests)) == (1, 1)


async def test_an_idle_connection_is_not_used_again_so_that_its_end_puts_no_message_in_doubt(
    outgoing: Outgoing,
) -> None:
    async def act(connection: Connection) -> None:
        await connection.request()
        await connection.answer(200, "connection: keep-alive", "keep-alive: timeout=100")
        await connection.pause(0.1)  # then the peer closes it, as if it had been idle for too long

    async with serving(act) as peer:
        replies = [await outgoing.send(post(peer.url())) for _ in range(5)]
        assert {reply.fate for reply in replies} == {Fate.ANSWERED}
        assert (peer.connections, len(peer.requests)) == (5, 5)


@pytest.mark.parametrize("status", [200, 413])
async def test_an_answer_before_the_whole_body_was_taken_is_no_acceptance(outgoing: Outgoing, status: int) -> None:
    async def act(connection: Connection) -> None:
        await connection.head()
        await connection.answer(status)

    reply = await outcome(outgoing, act, body=b"x" * 16_000_000)
    if status == 413 and reply.fate is Fate.ANSWERED:  # the reset that follows may overtake the answer
        assert reply.status == 413
    else:
        assert reply.fate is Fate.MAYBE_SENT


class Scripted(httpcore.AsyncNetworkStream):
    """A connection whose writes end as a test says, one after the other, and which answers 200: no kernel does so to order."""

    def __init__(self, *writes: str) -> None:
        self._writes = list(writes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        match self._writes.pop(0) if buffer else "passes":
            case "fails":
                raise httpcore.WriteError
            case "hangs":
                await asyncio.Event().wait()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        (("passes", "passes"), (Fate.ANSWERED, "")),
        (("passes", "fails"), (Fate.MAYBE_SENT, "answer_incomplete")),  # httpcore reads on, and finds a 200
        (("fails",), (Fate.MAYBE_SENT, "answer_incomplete")),
        (("hangs",), (Fate.MAYBE_SENT, "timeout")),  # the kernel may have taken any part of it
        (("passes", "hangs"), (Fate.MAYBE_SENT, "timeout")),
    ],
)
async def test_a_write_that_did_not_end_well_is_in_doubt_from_its_first_byte_on(
    outgoing: Outgoing, monkeypatch: pytest.MonkeyPatch, writes: tuple[str, ...], expected: tuple[Fate, str]
) -> None:
    async def connect_tcp(self: object, host: str, port: int, **options: object) -> Scripted:
        return Scripted(*writes)

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect_tcp)
    reply = await outgoing.send(post("http://127.0.0.1:9/", timeout=SOON if "hangs" in writes else LATE))
    assert (reply.fate, reply.reason) == expected


async def test_information_before_the_answer_is_passed_over(outgoing: Outgoing) -> None:
    async def act(connection: Connection) -> None:
        await connection.request()
        await connection.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
        await connection.answer(202)

    assert (await outcome(outgoing, act)).status == 202


async def test_an_upgrade_that_nobody_asked_for_is_no_answer(outgoing: Outgoing) -> None:
    async def act(connection: Connection) -> None:
        await connection.request()
        await connection.write(b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")
        await connection.hang()

    reply = await outcome(outgoing, act)
    assert (reply.fate, reply.reason) == (Fate.MAYBE_SENT, "protocol")


async def test_an_answer_without_end_is_read_no_further_than_its_limit(outgoing: Outgoing) -> None:
    async def act(connection: Connection) -> None:
        await connection.request()
        await connection.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await connection.write(b"z" * 65536)

    async with serving(act) as peer:
        reply = await outgoing.send(post(peer.url()))
        assert (reply.fate, reply.status, reply.body_complete) == (Fate.ANSWERED, 200, False)
        assert reply.body == b"z" * KEPT_BYTES
        assert peer.written < 64 * READ_BYTES + 16_000_000  # what fits into the buffers of two sockets


async def test_a_compressed_answer_is_not_decoded(outgoing: Outgoing) -> None:
    bomb = gzip.compress(b"\0" * 30_000_000)

    async def act(connection: Connection) -> None:
        request = await connection.request()
        assert b"accept-encoding: identity" in request.lower()
        await connection.answer(200, "content-encoding: gzip", body=bomb)

    reply = await outcome(outgoing, act)
    assert (reply.fate, reply.status) == (Fate.ANSWERED, 200)
    assert reply.body == bomb[:KEPT_BYTES]


async def test_an_answer_that_ends_with_its_connection_is_whole(outgoing: Outgoing) -> None:
    async def act(connection: Connection) -> None:
        await connection.request()
        await connection.write(b"HTTP/1.0 200 OK\r\n\r\ncommitted")

    reply = await outcome(outgoing, act)
    assert (reply.fate, reply.body, reply.body_complete) == (Fate.ANSWERED, b"committed", True)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(outgoing: Outgoing, status: int) -> None:
    async with serving(ok) as elsewhere:

        async def act(connection: Connection) -> None:
            await connection.request()
            await connection.answer(status, f"location: {elsewhere.url()}")

        reply = await outcome(outgoing, act)
        assert (reply.fate, reply.status, elsewhere.connections) == (Fate.ANSWERED, status, 0)


async def test_cookies_are_not_kept(outgoing: Outgoing) -> None:
    async def act(connection: Connection) -> None:
        await connection.request()
        await connection.answer(200, "set-cookie: session=1; Path=/")

    async with serving(act) as peer:
        for _ in range(2):
            await outgoing.send(post(peer.url()))
        assert not any(b"cookie" in request.lower() for request in peer.requests)


@contextmanager
def nobody_listening() -> Iterator[int]:
    """A port that refuses, and stays ours so that nobody else opens it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def test_a_refused_connection_is_not_sent(outgoing: Outgoing) -> None:
    """mailpulse#7: what was never sent is a plain retry, and no work for people."""
    with nobody_listening() as port:
        reply = await outgoing.send(post(f"http://127.0.0.1:{port}/"))
    assert (reply.fate, reply.reason) == (Fate.NOT_SENT, "connect")


async def test_a_connection_that_is_not_taken_in_time_is_not_sent(outgoing: Outgoing) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # and nobody accepts: once its queue is full, further ones get no answer
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        reply = await outgoing.send(post(f"http://127.0.0.1:{full.getsockname()[1]}/", timeout=SOON))
        for one in waiting:
            one.close()
    assert (reply.fate, reply.reason) == (Fate.NOT_SENT, "connect_timeout")


@pytest.mark.parametrize(
    "headers",
    [
        {"content-length": "3"},
        {"Transfer-Encoding": "chunked"},
        {"host": "other.test"},
        {"x": "a\r\nx-injected: 1"},
        {"x": "é"},
        {"bad name": "x"},
        {"Expect": "100-continue"},
    ],
)
async def test_a_header_that_could_change_the_framing_is_not_sent(outgoing: Outgoing, headers: dict[str, str]) -> None:
    async with serving(ok) as peer:
        reply = await outgoing.send(Call("POST", peer.url(), headers, b"{}"))
        assert (reply.fate, reply.reason, peer.connections) == (Fate.NOT_SENT, "invalid_request", 0)


async def test_a_call_that_is_cancelled_tells_whether_it_may_have_been_sent(outgoing: Outgoing) -> None:
    async with serving(hangs_after_reading) as peer:
        flight = Flight()
        task = asyncio.create_task(outgoing.send(post(peer.url()), flight))
        await asyncio.wait_for(peer.arrived.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    reply = flight.interrupted()
    assert (reply.fate, reply.reason) == (Fate.MAYBE_SENT, "cancelled")


async def test_a_call_that_is_cancelled_before_its_connection_was_not_sent() -> None:
    looking = asyncio.Event()

    async def resolve(host: str) -> list[str]:
        looking.set()
        await asyncio.Event().wait()
        return []

    async with Outgoing(LOOPBACK, resolve=resolve) as outgoing:
        flight = Flight()
        task = asyncio.create_task(outgoing.send(post("http://slow.test/"), flight))
        await asyncio.wait_for(looking.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (flight.interrupted().fate, flight.interrupted().reason) == (Fate.NOT_SENT, "cancelled")


async def test_an_answer_that_had_come_whole_is_known_after_a_cancellation_too(outgoing: Outgoing) -> None:
    async with serving(ok) as peer:
        flight = Flight()
        reply = await outgoing.send(post(peer.url()), flight)
    assert flight.interrupted() is reply


async def test_a_host_that_hangs_leaves_room_for_the_others() -> None:
    """gruelbox#788, CAP#1273: one slow destination must not hold up the rest."""
    async with (
        Outgoing(LOOPBACK, max_connections=4, max_connections_per_host=2) as outgoing,
        serving(hangs_after_reading) as slow,
        serving(ok, host="127.0.0.2") as fast,
    ):
        stuck = [asyncio.create_task(outgoing.send(post(slow.url()))) for _ in range(8)]
        await asyncio.wait_for(slow.arrived.wait(), 10)
        for _ in range(5):
            assert (await outgoing.send(post(fast.url("127.0.0.2")))).status == 200
        over = await outgoing.send(post(slow.url(), timeout=SOON))
        assert (over.fate, over.reason) == (Fate.NOT_SENT, "pool_timeout")
        assert slow.connections == 2
        for task in stuck:
            task.cancel()
        await asyncio.wait(stuck)
        assert (await outgoing.send(post(fast.url("127.0.0.2")))).status == 200


async def test_after_the_end_nothing_is_sent() -> None:
    async with serving(ok) as peer:
        async with Outgoing(LOOPBACK) as outgoing:
            pass
        reply = await outgoing.send(post(peer.url()))
        assert (reply.fate, reply.reason, peer.connections) == (Fate.NOT_SENT, "stopping", 0)


async def test_many_calls_at_once_each_get_their_own_answer(outgoing: Outgoing) -> None:
    async def act(connection: Connection) -> None:
        request = await connection.request()
        await connection.answer(200, body=request.partition(b"\r\n\r\n")[2])

    async with serving(act) as peer:
        bodies = [str(number).encode() for number in range(200)]
        replies = await asyncio.gather(*(outgoing.send(post(peer.url(), body=body)) for body in bodies))
        assert [reply.body for reply in replies] == bodies


async def test_neither_call_nor_reply_shows_bodies_or_headers(outgoing: Outgoing) -> None:
    async with serving(ok) as peer:
        call = post(peer.url(), body=b"canary-body", Authorization="canary-header")
        shown = repr(call) + repr(await outgoing.send(call))
    assert "canary" not in shown
    assert "thanks" not in shown
