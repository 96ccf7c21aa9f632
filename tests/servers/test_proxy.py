"""The proxy's faults, seen by plain sockets and by a database connection."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import Connection, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from tests.servers.proxy import Proxy

PATIENCE_SECONDS = 10.0
SILENCE_SECONDS = 0.2


class Echo:
    """A server that answers each line with `re: ` and the line, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            try:
                for line in lines:
                    self.asked.append(line)
                    connection.sendall(b"re: " + line)
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as server:
        yield server


@pytest.fixture
def middle(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as running:
        yield running


@pytest.fixture
def client(middle: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", middle.port), timeout=PATIENCE_SECONDS) as sock:
        sock.sendall(b"hello\n")
        assert sock.recv(100) == b"re: hello\n"
        yield sock


def _is_silent(sock: socket.socket) -> bool:
    sock.settimeout(SILENCE_SECONDS)
    try:
        return sock.recv(100) == b"never"
    except TimeoutError:
        return True
    finally:
        sock.settimeout(PATIENCE_SECONDS)


def _holds(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    waiting = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        waiting.wait(0.005)
    return True


def test_a_blackhole_holds_what_is_sent_and_heals(middle: Proxy, client: socket.socket) -> None:
    middle.blackhole()
    client.sendall(b"held\n")
    assert _is_silent(client)
    middle.heal()
    assert client.recv(100) == b"re: held\n"


def test_dropped_replies_are_lost_for_good(middle: Proxy, echo: Echo, client: socket.socket) -> None:
    middle.drop_replies()
    client.sendall(b"work\n")
    assert _is_silent(client)
    assert b"work\n" in echo.asked
    middle.heal()
    client.sendall(b"more\n")
    assert client.recv(100) == b"re: more\n"


def test_delayed_replies_come_late_and_in_order(middle: Proxy, client: socket.socket) -> None:
    middle.delay_replies(0.3)
    begun = time.monotonic()
    client.sendall(b"one\n")
    client.sendall(b"two\n")
    with client.makefile("rb") as lines:
        assert [lines.readline(), lines.readline()] == [b"re: one\n", b"re: two\n"]
    assert time.monotonic() - begun >= 0.3


def test_cut_after_some_bytes_of_a_reply(middle: Proxy, client: socket.socket) -> None:
    middle.cut_after(5)
    client.sendall(b"hello\n")
    with client.makefile("rb") as reader:
        assert reader.read() == b"re: h"


def test_cut_after_some_bytes_of_a_request(middle: Proxy, echo: Echo, client: socket.socket) -> None:
    middle.cut_after(3, "requests")
    client.sendall(b"hello\n")
    assert client.recv(100) in {b"", b"re: hel"}
    assert b"hello\n" not in echo.asked[1:]


def test_a_cut_can_be_a_reset(middle: Proxy, client: socket.socket) -> None:
    middle.cut_after(0, reset=True)
    client.sendall(b"hello\n")
    with pytest.raises(ConnectionResetError):
        client.recv(100)


def test_reset_all_resets_open_connections(middle: Proxy, client: socket.socket) -> None:
    middle.reset_all()
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert _holds(lambda: middle.open_connections == 0)


def test_refuse_resets_new_connections_and_spares_open_ones(middle: Proxy, client: socket.socket) -> None:
    middle.refuse()
    # The reset may come before connect() has returned.
    address = ("127.0.0.1", middle.port)
    with pytest.raises(ConnectionResetError), socket.create_connection(address, PATIENCE_SECONDS) as late:
        late.recv(100)
    client.sendall(b"still\n")
    assert client.recv(100) == b"re: still\n"


def test_the_reply_to_a_marked_request_is_lost_once(middle: Proxy, echo: Echo, client: socket.socket) -> None:
    middle.lose_reply_to(b"commit")
    client.sendall(b"read committed\n")
    assert client.recv(100) == b"re: read committed\n"
    client.sendall(b"commit\n")
    assert client.recv(100) == b""
    assert middle.struck.is_set()
    assert b"commit\n" in echo.asked
    with socket.create_connection(("127.0.0.1", middle.port), timeout=PATIENCE_SECONDS) as again:
        again.sendall(b"commit\n")
        assert again.recv(100) == b"re: commit\n"


def test_silence_after_a_marked_request(middle: Proxy, client: socket.socket) -> None:
    middle.lose_reply_to(b"commit", silence=True)
    client.sendall(b"commit\n")
    assert _is_silent(client)
    assert middle.struck.is_set()


def test_cut_before_keeps_the_marked_request_from_the_server(middle: Proxy, echo: Echo, client: socket.socket) -> None:
    middle.cut_before(b"commit")
    client.sendall(b"commit\n")
    assert client.recv(100) == b""
    assert middle.struck.is_set()
    assert b"commit\n" not in echo.asked


def _begin(url: str) -> Connection:
    connection = create_engine(url, poolclass=NullPool).connect()
    connection.execute(text("CREATE TABLE IF NOT EXISTS things (id INTEGER PRIMARY KEY)"))
    connection.commit()
    connection.execute(text("INSERT INTO things VALUES (1)"))
    return connection


def _count(url: str) -> int:
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM things")).scalar_one())


@pytest.mark.parametrize(("fault", "committed"), [("lose_reply_to", 1), ("cut_before", 0)])
def test_a_commit_breaks_on_either_side_of_the_truth(
    proxy: Proxy, database_url: str, fault: str, committed: int
) -> None:
    connection = _begin(proxy.url(database_url))
    getattr(proxy, fault)(b"COMMIT")
    with pytest.raises(DBAPIError):
        connection.commit()
    connection.invalidate()
    connection.close()
    assert proxy.struck.is_set()
    assert _count(database_url) == committed
