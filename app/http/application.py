"""`Application`: the FastAPI application with our layers in front. `app.main` makes one and includes the primitives' routers.

Order, from outside: Front (request id, problems, access line) -> Dispatch (thin routes) -> FastAPI (pages, the dashboard).
Front stands outside the framework's own error handling, so that every error there is becomes a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.errors import (
    FORBIDDEN,
    INTERNAL,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    PAYLOAD_TOO_LARGE,
    UNAUTHENTICATED,
    UNSUPPORTED_MEDIA_TYPE,
    VALIDATION_FAILED,
    Code,
    Refusal,
)
from app.http import docs, health, metrics, openapi
from app.http.dispatch import Dispatch
from app.http.middleware import Front
from app.http.problem import internal, problem_bytes, problem_headers
from app.jsontext import refusal_of

_BY_STATUS: dict[int, Code] = {
    401: UNAUTHENTICATED,
    403: FORBIDDEN,
    404: NOT_FOUND,
    405: METHOD_NOT_ALLOWED,
    413: PAYLOAD_TOO_LARGE,
    415: UNSUPPORTED_MEDIA_TYPE,
}


class Application(FastAPI):
    """`state.runtime` must be set before the first request; `state.metrics` is made here."""

    def __init__(self, **options: Any) -> None:
        super().__init__(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, **options)
        self._front = Front(Dispatch(self._framework))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self._front(scope, receive, send)

    async def _framework(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI 3.1 document; made once."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi.document(self)
        return self.openapi_schema


def build(
    runtime: Any,
    routers: Sequence[APIRouter],
    *,
    checks: Sequence[Callable[[Any], Any]] = (),
    collectors: Sequence[metrics.Collect] = (),
    pages: Mapping[Code, Mapping[str, Any]] | None = None,
    **options: Any,
) -> Application:
    """The application for `runtime`: our own routes, the given routers, error handling. `options` go to FastAPI.

    `checks` and `collectors` are those of the primitives' manifests: for `/health` and for `/metrics`.
    `pages` explain codes that are no refusals, each with an example.
    """
    app = Application(title=openapi.TITLE, version=metrics.release(), **options)
    app.state.runtime = runtime
    app.state.metrics = metrics.Metrics(runtime, collectors)
    app.state.checks = tuple(checks)
    app.state.pages = {code.name: (code, example) for code, example in (pages or {}).items()}
    for router in (*routers, health.router, metrics.router, docs.router):
        app.include_router(router)
    app.add_exception_handler(Refusal, _refusal)
    app.add_exception_handler(Exception, _failure)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _request_validation)
    return app


# Handlers give a response: what they raised would pass through the framework's own guard, which answers in plain text.


def _respond(request: Request, refusal: Refusal) -> Response:
    body = problem_bytes(refusal, request.scope["state"]["request_id"])
    return Response(body, refusal.http_status, problem_headers(refusal))


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return _respond(request, error)


async def _failure(request: Request, _error: Exception) -> Response:
    """The error itself goes on to Front, which logs it."""
    return _respond(request, internal())


async def _http_exception(request: Request, error: Exception) -> Response:
    """What Starlette and FastAPI raise themselves. Their texts are not passed on."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    if status < 400:
        return Response(status_code=status, headers=error.headers)
    code = _BY_STATUS.get(status, VALIDATION_FAILED if status < 500 else INTERNAL)
    extra: dict[str, Any] = {}
    if status == 405 and error.headers:
        extra["allow"] = [method.strip() for method in error.headers.get("Allow", "").split(",") if method.strip()]
    detail = "There is nothing at this path." if status == 404 else code.title + "."
    return _respond(request, Refusal(code, detail, extra, status=status))


async def _request_validation(request: Request, error: Exception) -> Response:
    """What FastAPI found in a request to one of the few routes that it validates itself."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(one["type"] == "json_invalid" for one in found):
        return _respond(request, Refusal(VALIDATION_FAILED, "The body is not JSON.", status=400))
    prefix = "?" if found and found[0]["loc"][0] == "query" else "#/"
    return _respond(request, refusal_of([{**one, "loc": one["loc"][1:]} for one in found], prefix))
