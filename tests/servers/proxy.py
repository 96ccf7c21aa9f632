"""A TCP proxy that breaks connections on demand: real sockets, real threads, switchable while traffic flows.

It knows nothing of the protocols that it carries; `url` asks the drivers for plain text so that `marker` can be found.
"""

from __future__ import annotations

import re
import selectors
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from sqlalchemy.engine import make_url

Direction = Literal["requests", "replies"]

CHUNK = 65_536
SEND_SECONDS = 10.0


@dataclass(frozen=True, eq=False)
class Behaviour:
    """What the proxy does to its connections. Replaced as a whole, so that a connection sees the change by identity."""

    refuse: bool = False  # new connections are reset at once
    hold: bool = False  # nothing is read, nothing is answered, nothing is closed
    delay_seconds: float = 0.0  # each reply waits so long
    drop_replies: bool = False  # requests arrive, replies vanish
    cut_bytes: int | None = None  # a connection ends after so many more bytes
    cut_direction: Direction = "replies"
    cut_by_reset: bool = False
    marker: bytes | None = None  # the request to act on, once
    marker_action: Literal["lose_reply", "silence", "cut_before"] = "lose_reply"

    def marks(self, request: bytes) -> bool:
        """Whether the marker stands in the request as a word: COMMIT is not in READ COMMITTED."""
        return self.marker is not None and bool(re.search(rb"(?<!\w)" + re.escape(self.marker) + rb"(?!\w)", request))


HEALTHY = Behaviour()


class Proxy:
    """Carries TCP from a free port of 127.0.0.1 to `target_port`. A context manager, or start() and close()."""

    def __init__(self, target_port: int, target_host: str = "127.0.0.1") -> None:
        self.target = (target_host, target_port)
        self.port = 0
        self.struck = threading.Event()
        """Set when the fault of `lose_reply_to` or `cut_before` has happened."""
        self._lock = threading.Lock()
        self._behaviour = HEALTHY
        self._marker_armed = False
        self._links: set[_Link] = set()
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None

    # Faults. Each call replaces the fault before it; `heal` ends it.

    def heal(self) -> None:
        """Carry everything again. What was held flows; what was dropped stays lost."""
        self._switch(HEALTHY)

    def refuse(self) -> None:
        """Reset each new connection; open ones go on."""
        self._switch(Behaviour(refuse=True))

    def blackhole(self) -> None:
        """Carry nothing and close nothing, as a cut cable does. New connections open and get no answer."""
        self._switch(Behaviour(hold=True))

    def delay_replies(self, seconds: float) -> None:
        """Hand over each reply so much later; the order stays."""
        self._switch(Behaviour(delay_seconds=seconds))

    def drop_replies(self) -> None:
        """Forward requests and swallow all replies: the server does the work and the client never hears of it."""
        self._switch(Behaviour(drop_replies=True))

    def cut_after(self, count: int, direction: Direction = "replies", *, reset: bool = False) -> None:
        """End each connection once `count` more bytes went in `direction`; in good order, or with a reset (RST)."""
        self._switch(Behaviour(cut_bytes=count, cut_direction=direction, cut_by_reset=reset))

    def lose_reply_to(self, marker: bytes, *, silence: bool = False) -> None:
        """Let the next request that holds `marker` be answered by the server, swallow the answer, cut the connection.

        With `silence` the connection stays open and mute. One request only; later ones pass. The marker is a word or
        words (COMMIT is not found in COMMITTED), and must lie in one packet, as a short statement does.
        """
        self._arm(Behaviour(marker=marker, marker_action="silence" if silence else "lose_reply"))

    def cut_before(self, marker: bytes) -> None:
        """Cut the connection at the next request that holds `marker`, before the server sees that request."""
        self._arm(Behaviour(marker=marker, marker_action="cut_before"))

    def reset_all(self) -> None:
        """Reset (RST) every open connection now; new ones are as the fault in force says."""
        for link in self._open_links():
            link.end(reset=True)

    # The rest.

    @property
    def open_connections(self) -> int:
        return len(self._open_links())

    def url(self, url: str) -> str:
        """Return a database URL that leads through this proxy, without TLS so that `marker` can be seen."""
        parsed = make_url(url).set(host="127.0.0.1", port=self.port)
        plain = {"sslmode": "disable"} if parsed.get_backend_name() == "postgresql" else {"ssl_disabled": "true"}
        return parsed.update_query_dict(plain).render_as_string(hide_password=False)

    def start(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, args=(self._listener,), name="proxy-accept", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        if self._listener is None or self._acceptor is None:
            return
        # close() alone would leave the acceptor asleep in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        self._listener = None
        for link in self._open_links():
            link.end(reset=True)
            link.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _switch(self, behaviour: Behaviour) -> None:
        with self._lock:
            self._behaviour = behaviour
            self._marker_armed = behaviour.marker is not None
            links = list(self._links)
        for link in links:
            link.wake()

    def _arm(self, behaviour: Behaviour) -> None:
        self.struck.clear()
        self._switch(behaviour)

    def behaviour(self) -> Behaviour:
        with self._lock:
            return self._behaviour

    def take_marker(self, behaviour: Behaviour) -> bool:
        """Whether the caller is the one that may act on the marker; true once for each arming."""
        with self._lock:
            taken = self._marker_armed and behaviour is self._behaviour
            if taken:
                self._marker_armed = False
            return taken

    def forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)

    def _open_links(self) -> list[_Link]:
        with self._lock:
            return list(self._links)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if self.behaviour().refuse:
                _reset(client)
                continue
            try:
                upstream = socket.create_connection(self.target, timeout=SEND_SECONDS)
            except OSError:
                _reset(client)
                continue
            link = _Link(self, client, upstream)
            with self._lock:
                self._links.add(link)
            link.start()


class _Link(threading.Thread):
    """One connection through the proxy. Only this thread touches its two sockets, so that a reset is immediate."""

    def __init__(self, proxy: Proxy, client: socket.socket, upstream: socket.socket) -> None:
        super().__init__(name="proxy-link", daemon=True)
        self._proxy = proxy
        self._client, self._upstream = client, upstream
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._end_lock = threading.Lock()
        self._end_asked: Literal["no", "close", "reset"] = "no"
        self._delayed: deque[tuple[float, bytes]] = deque()  # (when to hand over, reply)
        self._seen: Behaviour | None = None
        self._bytes_left: int | None = None
        self._losing: Literal["no", "lose_reply", "silence"] = "no"
        for sock in (client, upstream):
            sock.settimeout(SEND_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wake(self) -> None:
        with self._end_lock:
            if self._waker.fileno() == -1:
                return
            try:
                self._waker.send(b"!")
            except BlockingIOError:
                return  # it has been woken often enough

    def end(self, *, reset: bool) -> None:
        """Ask the link to end; it does so at once."""
        self._end_asked = "reset" if reset else "close"
        self.wake()

    def run(self) -> None:
        try:
            while self._end_asked == "no" and self._step():
                pass
        except OSError:
            # One side broke. The other must hear of it as a break, not as a good end.
            self._end_asked = "reset"
        finally:
            self._proxy.forget(self)
            for sock in (self._client, self._upstream):
                if self._end_asked == "reset":
                    _reset(sock)
                else:
                    sock.close()
            with self._end_lock:
                self._waker.close()
            self._woken.close()

    def _step(self) -> bool:
        """Wait for the next thing to do, and do it; False when the connection has come to its end."""
        behaviour = self._proxy.behaviour()
        if behaviour is not self._seen:
            self._seen, self._bytes_left = behaviour, behaviour.cut_bytes
        for sock in self._wait(behaviour):
            if sock is self._woken:
                self._woken.recv(CHUNK)
                return True
            chunk = sock.recv(CHUNK)
            if not chunk:
                self._hand_over(time.monotonic() + behaviour.delay_seconds)
                return False
            carried = self._request(chunk, behaviour) if sock is self._client else self._reply(chunk, behaviour)
            if not carried:
                return False
        self._hand_over(time.monotonic())
        return True

    def _wait(self, behaviour: Behaviour) -> list[socket.socket]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            if not behaviour.hold:
                selector.register(self._client, selectors.EVENT_READ)
                selector.register(self._upstream, selectors.EVENT_READ)
            timeout = None
            if self._delayed and not behaviour.hold:
                timeout = max(0.0, self._delayed[0][0] - time.monotonic())
            ready = [key.fileobj for key, _ in selector.select(timeout)]
        return [sock for sock in (self._woken, self._client, self._upstream) if sock in ready]

    def _request(self, chunk: bytes, behaviour: Behaviour) -> bool:
        if behaviour.marks(chunk) and self._proxy.take_marker(behaviour):
            if behaviour.marker_action == "cut_before":
                self._proxy.struck.set()
                return False
            self._losing = behaviour.marker_action
        return self._carry(chunk, self._upstream, "requests", behaviour)

    def _reply(self, chunk: bytes, behaviour: Behaviour) -> bool:
        if self._losing != "no":
            self._proxy.struck.set()
            return self._losing == "silence"
        if behaviour.drop_replies:
            return True
        if behaviour.delay_seconds or self._delayed:
            self._delayed.append((time.monotonic() + behaviour.delay_seconds, chunk))
            return True
        return self._carry(chunk, self._client, "replies", behaviour)

    def _carry(self, chunk: bytes, sink: socket.socket, direction: Direction, behaviour: Behaviour) -> bool:
        if self._bytes_left is None or behaviour.cut_direction != direction:
            sink.sendall(chunk)
            return True
        allowed = chunk[: self._bytes_left]
        self._bytes_left -= len(allowed)
        if allowed:
            sink.sendall(allowed)
        if self._bytes_left == 0:
            self._end_asked = "reset" if behaviour.cut_by_reset else "close"
            return False
        return True

    def _hand_over(self, until: float) -> None:
        while self._delayed and self._delayed[0][0] <= until:
            self._client.sendall(self._delayed.popleft()[1])


def _reset(sock: socket.socket) -> None:
    """Close with RST instead of FIN: the other side's next read or write fails."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    finally:
        sock.close()
