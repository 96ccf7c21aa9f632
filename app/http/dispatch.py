"""Finds the thin route of a request by its path segments, without trying one route after the other.

Everything that is no thin route (pages, the dashboard) goes on to the FastAPI application. Segments are split before they
are decoded, so `%2F` in a path parameter is a slash in its value and not a border between segments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi.routing import iter_route_contexts
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import METHOD_NOT_ALLOWED, VALIDATION_FAILED, FieldError, Refusal
from app.http.bodies import too_large
from app.http.routing import Thin, ThinRoute


@dataclass(slots=True)
class _Target:
    """One method of one path."""

    thin: Thin
    template: str
    names: tuple[str, ...]


@dataclass(slots=True)
class _Node:
    """One place in the tree of segments: what ends here by method, and what goes on."""

    targets: dict[str, _Target] = field(default_factory=dict)
    literal: dict[str, _Node] = field(default_factory=dict)
    any: _Node | None = None

    def grow(self, segment: str) -> _Node:
        if segment.startswith("{"):
            if self.any is None:
                self.any = _Node()
            return self.any
        return self.literal.setdefault(segment, _Node())


def _find(node: _Node, segments: list[str], at: int, values: list[str]) -> _Node | None:
    """The node that the segments from `at` on lead to, literals before parameters; `values` gets the parameters."""
    if at == len(segments):
        return node if node.targets else None
    segment = segments[at]
    following = node.literal.get(segment)
    if following is not None and (found := _find(following, segments, at + 1, values)) is not None:
        return found
    if node.any is not None and segment:
        values.append(segment)
        if (found := _find(node.any, segments, at + 1, values)) is not None:
            return found
        values.pop()
    return None


class Dispatch:
    """ASGI: thin routes here, everything else to `app`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._tree: _Node | None = None
        self._static: dict[str, _Node] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        tree = self._tree if self._tree is not None else self._build(scope["app"])
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if root and path.startswith(root + "/"):
            path = path[len(root) :]
        values: list[str] = []
        node = self._static.get(path)
        if node is None:
            node = _find(tree, _segments(scope, path, root), 0, values)
        if node is None:
            await self.app(scope, _limited(receive, scope), send)
            return
        target = node.targets.get(scope["method"]) or (node.targets.get("GET") if scope["method"] == "HEAD" else None)
        if target is None:
            raise _method_not_allowed(node)
        scope["state"]["route"] = target.template
        await target.thin.serve(scope, receive, send, dict(zip(target.names, values, strict=True)))

    def _build(self, app: Any) -> _Node:
        """Read the routes once, when the first request comes and all of them are registered."""
        tree = _Node()
        for context in iter_route_contexts(app.routes):
            route = context.original_route
            if not isinstance(route, ThinRoute):
                continue
            template = str(context.path)
            segments = template.split("/")[1:]
            node = tree
            for segment in segments:
                node = node.grow(segment)
            names = tuple(segment[1:-1] for segment in segments if segment.startswith("{"))
            for method in route.methods or ():
                if method in node.targets:
                    raise RuntimeError(f"{method} {template} is declared twice")
                node.targets[method] = _Target(route.thin, template, names)
            if not names:
                self._static[template] = node
        self._tree = tree
        return tree


def _segments(scope: Scope, path: str, root: str) -> list[str]:
    """The decoded segments of the path. Raises: Refusal for a path that is not percent-encoded UTF-8."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%" not in raw:
        return path.split("/")[1:]
    raw = raw.partition(b"?")[0]
    prefix = root.encode()
    if prefix and raw.startswith(prefix + b"/"):
        raw = raw[len(prefix) :]
    try:
        return [unquote_to_bytes(segment).decode("utf-8") for segment in raw.split(b"/")[1:]]
    except UnicodeDecodeError:
        errors = (FieldError("path", "must be percent-encoded UTF-8"),)
        raise Refusal(VALIDATION_FAILED, "The path is not valid.", errors=errors) from None


def _method_not_allowed(node: _Node) -> Refusal:
    allowed = sorted(set(node.targets) | ({"HEAD"} if "GET" in node.targets else set()))
    return Refusal(METHOD_NOT_ALLOWED, "This path does not take this method.", extra={"allow": allowed})


def _limited(receive: Receive, scope: Scope) -> Receive:
    """`receive` that stops a body as soon as it is too large."""
    limit: int = scope["app"].state.runtime.settings.max_body_bytes
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise too_large(limit)
        return message

    return counted
