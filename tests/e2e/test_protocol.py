"""What reaches the server before HTTP is understood: too large heads, and bytes that are no request."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

import pytest

from tests.e2e.process import ServiceProcess

pytestmark = pytest.mark.engines("sqlite")


def exchange(service: ServiceProcess, *parts: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send the parts on one connection, and read to its end. A server that refuses may close before it has read all."""
    address = urlsplit(service.url)
    received = b""
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=20) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass  # allow swallowed-errors: the answer that came before the close is what is asserted
        while chunk := connection.recv(65536):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    return (
        int(status.split()[1]),
        {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)},
        body,
    )


@pytest.mark.parametrize("request_bytes", [
    b"FOO /v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
], ids=["method", "control", "lengths", "tls"])  # fmt: skip
def test_bytes_that_are_no_request_are_answered_by_a_problem(service: ServiceProcess, request_bytes: bytes) -> None:
    status, headers, body = exchange(service, request_bytes)
    assert (status, headers["content-type"], headers["connection"]) == (400, "application/problem+json", "close")
    problem = json.loads(body)
    assert (problem["code"], problem["status"], problem["request_id"]) == (
        "validation_failed",
        400,
        headers["x-request-id"],
    )


def test_a_head_that_does_not_end_is_refused_before_it_fills_the_memory(service: ServiceProcess) -> None:
    endless = (b"X-Filler-%d: " % number + b"x" * 1000 + b"\r\n" for number in range(100))
    status, headers, body = exchange(service, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n", *endless)
    assert (status, headers["content-type"]) == (431, "application/problem+json")
    assert json.loads(body)["status"] == 431


def test_a_large_body_after_a_small_head_is_not_counted_as_a_head(service: ServiceProcess) -> None:
    with service.client() as client:
        payload = "x" * 200_000
        answer = client.post("/v1/jobs", json={"queue": "q", "type": "t", "payload": payload})
        again = client.post("/v1/jobs", json={"queue": "q", "type": "t", "payload": payload})
    assert (answer.status_code, again.status_code) == (201, 201)
