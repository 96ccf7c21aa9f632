"""The outermost layer, pure ASGI: request id, trace context, size guard, security headers, access line, 500 guard.

It wraps every answer of the service, also those that the framework or a fault makes. Refusals raised anywhere below become
problems here. Nothing of a body or of a query string is logged.
"""

from __future__ import annotations

import re
import time
from collections.abc import MutableMapping
from typing import Any

import structlog
import uuid_utils
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import Refusal
from app.http.bodies import ClientGone, too_large
from app.http.problem import internal, problem_bytes, problem_headers

log = structlog.get_logger("tenure.http")

_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_DEFAULTS: tuple[tuple[bytes, bytes], ...] = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
SILENT = frozenset({"/livez", "/readyz", "/startupz", "/health", "/metrics"})
CLIENT_GONE = 499


class Front:
    """One request from its first byte to its access line. Keeps what others read in `scope["state"]`: `request_id`,
    `traceparent`, `route` (template), `principal` (key id), `quiet`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        try:
            exchange.check_length()
            await self.app(scope, receive, exchange.send)
        except Refusal as refusal:
            await exchange.refuse(refusal)
        except ClientGone:
            exchange.status = CLIENT_GONE
        except Exception as error:
            log.error(
                "request_failed",
                method=scope["method"],
                route=exchange.route,
                request_id=exchange.request_id,
                error=type(error).__name__,
                exc_info=error,
            )
            if exchange.status and not exchange.ended:
                raise  # the answer is under way: only breaking the connection tells the client
            await exchange.refuse(internal())
        finally:
            exchange.finish()


class _Exchange:
    """The state of one request and its answer."""

    __slots__ = ("_length", "_scope", "_send", "_since", "ended", "request_id", "state", "status")

    def __init__(self, scope: Scope, send: Send) -> None:
        self._since = time.perf_counter()
        self._scope = scope
        self._send = send
        self._length = 0
        self.status = 0
        self.ended = False
        given: bytes | None = None
        trace: bytes | None = None
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                given = value
            elif name == b"traceparent":
                trace = value if trace is None else b""  # two of them: neither can be trusted
            elif name == b"content-length":
                self._length = int(value) if value.isdigit() else 0
        known = given is not None and _REQUEST_ID.fullmatch(given)
        self.request_id = given.decode("ascii") if known and given is not None else str(uuid_utils.uuid7())
        self.state: MutableMapping[str, Any] = scope.setdefault("state", {})
        self.state["request_id"] = self.request_id
        self.state["traceparent"] = parse_traceparent(trace)

    @property
    def route(self) -> str:
        """The template of the route; never the path as it was sent, which may name anything."""
        template = self.state.get("route")
        if template is None:
            template = getattr(self._scope.get("route"), "path", None) or "unmatched"
        return str(template)

    def check_length(self) -> None:
        """Refuse a body that announces itself too large, before anything of it is read."""
        limit: int = self._scope["app"].state.runtime.settings.max_body_bytes
        if self._length > limit:
            raise too_large(limit)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message.setdefault("headers", [])
            if not isinstance(headers, list):
                headers = message["headers"] = list(headers)
            present = {name for name, _ in headers}
            headers.append((b"x-request-id", self.request_id.encode("ascii")))
            headers.extend(pair for pair in _DEFAULTS if pair[0] not in present)
            if b"connection" not in present and self._draining():
                headers.append((b"connection", b"close"))  # or the client's next request meets a closed connection
        elif not message.get("more_body", False):
            self.ended = True
        await self._send(message)

    def _draining(self) -> bool:
        runtime = getattr(self._scope["app"].state, "runtime", None)
        return runtime is not None and runtime.draining.is_set()

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with the problem; if the answer has begun already there is nothing left to say."""
        if self.status:
            return
        body = problem_bytes(refusal, self.request_id)
        headers = problem_headers(refusal)
        if refusal.http_status == 413:
            headers["connection"] = "close"  # what is left of the body is not read
        pairs = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
        pairs.append((b"content-length", b"%d" % len(body)))
        await self.send({"type": "http.response.start", "status": refusal.http_status, "headers": pairs})
        await self._send({"type": "http.response.body", "body": b"" if self._scope["method"] == "HEAD" else body})

    def finish(self) -> None:
        """Count the request and write its access line."""
        seconds = time.perf_counter() - self._since
        scope, route, status = self._scope, self.route, self.status or CLIENT_GONE
        metrics = getattr(scope["app"].state, "metrics", None)
        if metrics is not None:
            metrics.request(scope["method"], route, status, seconds)
        quiet = status < 400 and (route in SILENT or self.state.get("quiet", False))
        (log.debug if quiet else log.info)(
            "request",
            method=_method(scope["method"]),
            route=route,
            status=status,
            ms=round(seconds * 1000, 2),
            principal=self.state.get("principal"),
            request_id=self.request_id,
        )


def _method(method: str) -> str:
    return method if len(method) <= 16 and method.isalpha() else "?"


def parse_traceparent(value: bytes | None) -> str | None:
    """A W3C trace context that is valid, as text; None for none or an invalid one, which is ignored as the standard says."""
    if value is None or len(value) > 512 or _TRACEPARENT.fullmatch(value) is None:
        return None
    if value.startswith(b"00-") and len(value) != 55:
        return None
    return value.decode("ascii", errors="ignore")[:55]
