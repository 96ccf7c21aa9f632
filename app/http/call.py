"""What a handler gets and gives: `Call` and `Answer`. And `Gone`, which tells a long poll that its client hung up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Generic

from starlette.types import Receive, Scope
from typing_extensions import TypeVar

from app.access import Principal

B = TypeVar("B", default=None)
Q = TypeVar("Q", default=None)


class Answer:
    """What a handler gives back.

    `content`: anything that msgspec encodes (dicts, lists, Structs, `msgspec.Raw` for opaque values), or `bytes`, which are
    sent as they are. `quiet` keeps an uneventful answer (an empty long poll) out of the access log.
    """

    __slots__ = ("content", "headers", "media_type", "quiet", "status")

    def __init__(
        self,
        content: Any,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        media_type: str = "application/json",
        quiet: bool = False,
    ) -> None:
        self.content = content
        self.status = status  # None: the one that the route declares
        self.headers = headers
        self.media_type = media_type
        self.quiet = quiet


class Gone:
    """Whether the client of one call went away. Costs one task for a call that asks, nothing for the others."""

    def __init__(self, receive: Receive) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._watch(receive))

    def __bool__(self) -> bool:
        """True once the client has hung up (or the server closes the connection)."""
        return self._future.done()

    async def wait(self) -> None:
        """Return when the client has gone. May be cancelled and called again."""
        await asyncio.shield(self._future)

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call `callback` from the event loop once the client has gone; soon, if it already has."""
        self._future.add_done_callback(lambda future: None if future.cancelled() else callback())

    def close(self) -> None:
        """Stop watching. The router does this when the handler ends."""
        self._task.cancel()
        self._future.cancel()

    async def _watch(self, receive: Receive) -> None:
        with suppress(OSError):
            while (await receive())["type"] != "http.disconnect":
                pass
        if not self._future.done():
            self._future.set_result(None)


class Call(Generic[B, Q]):
    """One request, validated: `Call[BodyModel]`, `Call[None, QueryModel]`, or plain `Call` for neither.

    `path` holds the parameters of the path as text, decoded and checked. `body_size` is the length of the body in bytes.
    """

    __slots__ = ("_gone", "_principal", "_receive", "body", "body_size", "path", "query", "runtime", "scope")

    def __init__(
        self, scope: Scope, receive: Receive, runtime: Any, principal: Principal | None, path: dict[str, str]
    ) -> None:
        self.scope = scope
        self.runtime = runtime
        self.path = path
        self.body: B
        self.query: Q
        self.body_size = 0
        self._principal = principal
        self._receive = receive
        self._gone: Gone | None = None

    @property
    def principal(self) -> Principal:
        """Who calls. Only routes that declare a role may ask."""
        if self._principal is None:
            raise RuntimeError("an open route has no principal")
        return self._principal

    @property
    def request_id(self) -> str:
        return self.scope["state"]["request_id"]  # type: ignore[no-any-return]  # set by the middleware, a text

    @property
    def traceparent(self) -> str | None:
        """The caller's W3C trace context, or None if it sent none that is valid."""
        return self.scope["state"]["traceparent"]  # type: ignore[no-any-return]

    @property
    def gone(self) -> Gone:
        """Watch for the client's hang-up; the watch begins with the first use."""
        if self._gone is None:
            self._gone = Gone(self._receive)
        return self._gone

    def close(self) -> None:
        if self._gone is not None:
            self._gone.close()


def runtime_of(carrier: Any) -> Any:
    """The process's `Runtime`, from a Call, a Starlette Request or an ASGI scope."""
    scope = carrier if isinstance(carrier, dict) else carrier.scope
    return scope["app"].state.runtime
