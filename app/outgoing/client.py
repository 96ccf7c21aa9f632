"""The one place from which the service calls others over HTTP.

What is not here cannot go wrong: no redirects, cookies, proxies, retries, decoding, HTTP/2, kept connections, and nothing
from the environment. httpx's own client would bring them, so only its request, response and transport types are used.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import httpcore
import httpx

from app.errors import StartupProblem
from app.outgoing import headers, urls
from app.outgoing.addresses import Targets, plain_name
from app.outgoing.backend import GuardedBackend, Progress
from app.outgoing.replies import Call, Fate, Reply, ended_by, not_sent
from app.outgoing.resolving import Resolve, Resolver
from app.outgoing.slots import Slots
from app.settings import Settings

READ_BYTES = 64 * 1024  # of an answer; what lies beyond is not read
KEPT_BYTES = 4 * 1024
# For lookup and connection together, and again for TLS: a host that is away must not hold a place for long
CONNECT_SECONDS = 10.0
_METHODS = frozenset({"DELETE", "GET", "PATCH", "POST", "PUT"})
_KEPT_HEADERS = ("content-type", "date", "retry-after")
_ALWAYS = {"accept": "*/*", "user-agent": "Tenure"}
_FORCED = {"accept-encoding": "identity", "connection": "close"}


class Flight(Progress):
    """What the caller of `Outgoing.send` may keep, to learn how far a call had come when it was cancelled. For one call."""

    __slots__ = ("reply",)

    def __init__(self) -> None:
        super().__init__()
        self.reply: Reply | None = None

    def interrupted(self) -> Reply:
        """The Reply of a call whose task was cancelled: the whole answer if it had come, else what must be feared."""
        return self.reply or ended_by(self, asyncio.CancelledError())


class _Stream(httpx.AsyncByteStream):
    """The body of an answer. Closing it closes the connection, which belongs to this call alone."""

    def __init__(self, answer: httpcore.Response, connection: httpcore.AsyncHTTPConnection) -> None:
        self._answer = answer
        self._connection = connection

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._answer.aiter_stream():
            yield part

    async def aclose(self) -> None:
        await self._connection.aclose()


class GuardedTransport(httpx.AsyncBaseTransport):
    """One connection for one request, by a guarded backend. It sends once and never again."""

    def __init__(self, targets: Targets, resolve: Resolve, context: ssl.SSLContext) -> None:
        self._targets = targets
        self._resolve = resolve
        self._context = context

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises what httpcore raises, or `NotConnected`. The request's extension `progress` learns how far it came."""
        url = httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        progress: Progress = request.extensions.get("progress") or Progress()
        connection = httpcore.AsyncHTTPConnection(
            origin=url.origin,
            ssl_context=self._context,
            retries=0,
            network_backend=GuardedBackend(self._targets, self._resolve, progress),
        )
        try:
            answer = await connection.handle_async_request(
                httpcore.Request(
                    method=request.method,
                    url=url,
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions={"timeout": {"connect": CONNECT_SECONDS}},
                )
            )
        except BaseException:  # httpcore closes it too, unless a second cancellation comes while it does
            await connection.aclose()
            raise
        return httpx.Response(answer.status, headers=answer.headers, stream=_Stream(answer, connection))


class Outgoing:
    """Calls others. One for each process, used as `async with`; `send` may be called from any number of tasks at once.

    `resolve` and `context` are for tests; otherwise the system's resolver, and the authorities of certifi.
    """

    def __init__(
        self,
        targets: Targets,
        *,
        max_connections: int = 100,
        max_connections_per_host: int = 10,
        resolve: Resolve | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        resolve = resolve or Resolver(2 * max_connections)
        context = context or httpx.create_ssl_context(trust_env=False)
        self.targets = targets
        self._transport = GuardedTransport(targets, resolve, context)
        self._slots = Slots(max_connections, max_connections_per_host)
        self._open = False

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Raises StartupProblem with one line if the targets or the file of authorities cannot be used."""
        return cls(
            targets_of(settings),
            max_connections=settings.delivery_max_connections,
            max_connections_per_host=settings.delivery_max_connections_per_host,
            context=_context_of(settings),
        )

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False  # a call under way belongs to its caller, who ends it or waits for it

    async def send(self, call: Call, flight: Flight | None = None) -> Reply:
        """Send one request once, and say what became of it.

        Guarantee: NOT_SENT only if no byte of the request was handed to a connection. Ends within `timeout_seconds`,
        whatever the other side does. Never raises but for cancellation; then `flight.interrupted()` says what is known.
        """
        flight = flight or Flight()
        request = _request(call, flight) if self._open else None
        if request is None:
            return not_sent("invalid_request" if self._open else "stopping")
        try:
            async with asyncio.timeout(call.timeout_seconds):
                async with self._slots.one(plain_name(request.url.host)):
                    flight.reply = await self._exchange(request, flight)
                    return flight.reply
        except Exception as fault:  # noqa: BLE001 - whatever it is, the caller must learn whether the request may be out
            return flight.reply or ended_by(flight, fault)

    async def _exchange(self, request: httpx.Request, flight: Flight) -> Reply:
        answer = await self._transport.handle_async_request(request)
        flight.status = answer.status_code
        kept, read, complete = b"", 0, True
        try:
            if flight.cut and answer.is_success:  # who accepts what it cannot have read whole proves nothing
                raise httpcore.WriteError
            async for part in answer.aiter_raw():
                kept += part[: KEPT_BYTES - len(kept)]
                read += len(part)
                if read > READ_BYTES:
                    complete = False
                    break
            flight.reply = Reply(
                Fate.ANSWERED,
                status=answer.status_code,
                headers={name: answer.headers[name][:200] for name in _KEPT_HEADERS if name in answer.headers},
                body=kept,
                body_complete=complete and read <= KEPT_BYTES,
            )
        finally:
            await answer.aclose()
        return flight.reply


def _request(call: Call, flight: Flight) -> httpx.Request | None:
    """The request as it is sent; None if it may not be. What was registered under older rules is judged by today's."""
    if call.method not in _METHODS or urls.problem_with(call.url) or headers.problem_with(call.headers, ours=True):
        return None
    fields = {**_ALWAYS, **{name.lower(): value for name, value in call.headers.items()}, **_FORCED}
    try:
        return httpx.Request(call.method, call.url, headers=fields, content=call.body, extensions={"progress": flight})
    except (httpx.InvalidURL, ValueError):
        return None


def targets_of(settings: Settings) -> Targets:
    """What may be called. Raises StartupProblem if an entry is malformed."""
    try:
        return Targets.parse(settings.delivery_allowed_targets)
    except ValueError as wrong:
        raise StartupProblem(f"setting TENURE_DELIVERY_ALLOWED_TARGETS is wrong: {wrong}", exit_code=2) from None


def _context_of(settings: Settings) -> ssl.SSLContext:
    context = httpx.create_ssl_context(trust_env=False)
    if settings.delivery_ca_file:
        try:
            context.load_verify_locations(cafile=settings.delivery_ca_file)
        except (OSError, ValueError):  # ssl's own errors are of these
            raise StartupProblem(
                "setting TENURE_DELIVERY_CA_FILE is wrong: it names no readable file of PEM certificates", exit_code=2
            ) from None
    return context
