"""A blocking HTTP connection for latencies: one request, one answer, nothing between the two but the sockets."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit


class Wire:
    """One connection to a service."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, url
        assert parts.port is not None, url
        self._host = f"{parts.hostname}:{parts.port}".encode()
        self.socket = socket.create_connection((parts.hostname, parts.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def send(self, path: str, body: Any, method: str = "POST") -> None:
        content = json.dumps(body).encode() if body is not None else b""
        self.socket.sendall(
            b"%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (method.encode(), path.encode(), self._host, len(content), content)
        )

    def receive(self) -> Any:
        """The next answer's JSON. Raises: RuntimeError unless it is a 2xx."""
        while b"\r\n\r\n" not in self._rest:
            self._more()
        head, _, rest = self._rest.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length:"))
        self._rest = rest
        while len(self._rest) < length:
            self._more()
        content, self._rest = self._rest[:length], self._rest[length:]
        if not lines[0].split()[1].startswith(b"2"):
            raise RuntimeError(f"{lines[0].decode()}: {content.decode(errors='replace')[:300]}")
        return json.loads(content)

    def call(self, path: str, body: Any, method: str = "POST") -> Any:
        self.send(path, body, method)
        return self.receive()

    def close(self) -> None:
        self.socket.close()

    def _more(self) -> None:
        chunk = self.socket.recv(262_144)
        if not chunk:
            raise RuntimeError("the service hung up")
        self._rest += chunk


def timed(wire: Wire, path: str, body: Any) -> tuple[float, Any]:
    """(milliseconds, answer)."""
    began = time.perf_counter()
    answer = wire.call(path, body)
    return (time.perf_counter() - began) * 1000, answer


def first_ready(wires: Sequence[Wire], seconds: float) -> list[Wire]:
    """Those of `wires` that have something to read, as soon as one has."""
    ready, _, _ = select.select([wire.socket for wire in wires], [], [], seconds)
    return [wire for wire in wires if wire.socket in ready]


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
