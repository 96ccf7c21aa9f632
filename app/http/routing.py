"""Thin routes: declared as FastAPI routes, with their whole OpenAPI, but run without its request handling.

At run time a request goes body bytes -> `parse` -> handler -> bytes. No dependency is solved; identity, request id and
trace context come from the middleware. A routes.py looks like this:

    router = thin_router("/v1", tags=["jobs"])

    @router.post(
        "/jobs", name="enqueue_job", status_code=201, requires=Role.PRODUCER, answers=JobRead,
        refuses=(IDEMPOTENCY_CONFLICT, QUEUE_FULL), also={200: "The job that this key made before (`replayed: true`)."},
    )
    async def enqueue_job(call: Call[EnqueueJob]) -> Answer:
        \"\"\"Enqueue one job.

        The rest of the docstring becomes the description in the OpenAPI.
        \"\"\"
        call.principal.require_names([call.body.queue])
        outcome = await call.runtime.lane("jobs.enqueue").submit(call.body, size=call.body_size)
        return Answer(outcome.read(), status=200 if outcome.replayed else 201)

    @router.get("/jobs/{job_id}", name="get_job", requires=Role.VIEWER, answers=JobRead, path={"job_id": IdText})
    async def get_job(call: Call[None, GetJobParams]) -> Answer: ...

Every route says who may call it: `requires=Role.X`, `requires=(Role.X, Role.Y)` (one is enough) or `requires=OPEN`. A path
parameter of type `IdText` that is no UUID is 404; any other that does not fit its type is 422. A client that hung up is
seen through `call.gone`. HEAD is answered for every GET.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from fastapi import APIRouter, Path, Query
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from app.access import Role
from app.errors import Code, not_found
from app.http.auth import identify
from app.http.bodies import check_content_type, read_body
from app.http.call import Answer, Call, runtime_of
from app.http.queries import parse_query
from app.http.refusals import bare_responses, responses_of, with_headers
from app.jsontext import IdText, parse, refusal_of

__all__ = ["OPEN", "Answer", "Call", "ThinRoute", "ThinRouter", "runtime_of", "thin_router"]

Handler = Callable[[Call[Any, Any]], Awaitable[Answer]]
NOT_MODIFIED = 304
OPEN: tuple[Role, ...] = ()
"""Declares that a route needs no key."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Thin:
    """What a thin route does at run time. `roles` empty means open."""

    handler: Handler
    roles: tuple[Role, ...]
    status: int
    body: type[BaseModel] | None
    query: type[BaseModel] | None
    path: Mapping[str, TypeAdapter[str]]
    ids: frozenset[str]

    async def call(self, scope: Scope, receive: Receive, parameters: dict[str, str]) -> tuple[Call[Any, Any], Answer]:
        """Authenticate, validate and run the handler. Raises: Refusal for everything that does not fit."""
        runtime = scope["app"].state.runtime
        principal = None
        if self.roles:
            principal = await identify(scope, runtime)
            principal.require(*self.roles)
        call: Call[Any, Any] = Call(
            scope, receive, runtime, principal, self._path(parameters) if parameters else parameters
        )
        call.query = parse_query(self.query, scope["query_string"])
        call.body = None
        if self.body is not None:
            check_content_type(scope)
            body = await read_body(scope, receive, runtime.settings.max_body_bytes)
            call.body_size = len(body)
            call.body = parse(self.body, body, max_value_bytes=runtime.settings.max_payload_bytes)
        try:
            return call, await self.handler(call)
        finally:
            call.close()

    def _path(self, parameters: dict[str, str]) -> dict[str, str]:
        checked: dict[str, str] = {}
        for name, value in parameters.items():
            adapter = self.path.get(name)
            try:
                checked[name] = value if adapter is None else adapter.validate_python(value)
            except ValidationError as invalid:
                if name in self.ids:
                    raise not_found(name.removesuffix("_id").replace("_", " ")) from None
                found = invalid.errors(include_url=False, include_input=False)
                raise refusal_of([{**error, "loc": ()} for error in found], f"{{{name}}}") from None
        return checked

    async def serve(self, scope: Scope, receive: Receive, send: Send, parameters: dict[str, str]) -> None:
        """Answer one request over ASGI."""
        _, answer = await self.call(scope, receive, parameters)
        body = answer.content if type(answer.content) is bytes else _encode(answer.content)
        headers = []
        if (
            answer.status != NOT_MODIFIED
        ):  # the headers of a content that is not sent would have to be those of the whole
            headers += [(b"content-type", answer.media_type.encode()), (b"content-length", b"%d" % len(body))]
        if answer.headers:
            headers.extend(
                (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()
            )
        if answer.quiet:
            scope["state"]["quiet"] = True
        status = self.status if answer.status is None else answer.status
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


class ThinRoute(APIRoute):
    """A FastAPI route whose endpoint is a stub that only carries the signature for the OpenAPI; `thin` does the work."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.thin: Thin = endpoint.thin  # type: ignore[attr-defined]  # set by ThinRouter.declare
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Any]:
        """For a request that FastAPI itself routes, without our dispatcher in front."""
        thin = self.thin

        async def handle(request: Request) -> Response:
            return _Served(thin, dict(request.path_params))

        return handle


class _Served(Response):
    """Runs a thin route at the place where Starlette sends a response."""

    def __init__(self, thin: Thin, parameters: dict[str, str]) -> None:
        super().__init__()
        self._thin = thin
        self._parameters = parameters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._thin.serve(scope, receive, send, self._parameters)


class ThinRouter(APIRouter):
    """A router of thin routes. Its `get`, `post`, `put` and `delete` take what `declare` takes."""

    def declare(
        self,
        method: str,
        path: str,
        *,
        name: str,
        requires: Role | Sequence[Role],
        answers: type[BaseModel],
        status_code: int = 200,
        refuses: Sequence[Code] = (),
        also: Mapping[int, str] | None = None,
        bare: Mapping[int, str] | None = None,
        path_types: Mapping[str, Any] | None = None,
        summary: str | None = None,
        response_description: str = "Done.",
        headers: Mapping[str, str] | None = None,
        media_type: str = "application/json",
        include_in_schema: bool = True,
    ) -> Callable[[Handler], Handler]:
        """Register a handler. `also` describes further success statuses, `bare` those without a content; `refuses` names
        the codes of this route's own. `headers`: what a success may carry besides the usual, by name with a description.
        """
        roles = (requires,) if isinstance(requires, Role) else tuple(requires)

        def register(handler: Handler) -> Handler:
            body, query = _models(handler)
            types = {parameter: (path_types or {}).get(parameter, str) for parameter in compile_path(path)[2]}
            thin = Thin(
                handler,
                roles,
                status_code,
                body,
                query,
                {parameter: TypeAdapter(kind) for parameter, kind in types.items() if kind is not str},
                frozenset(parameter for parameter, kind in types.items() if kind == IdText),
            )
            title, text = _texts(handler)
            self.add_api_route(
                path,
                _stub(handler, thin, types),
                methods=[method],
                name=name,
                operation_id=name,
                status_code=status_code,
                response_model=answers,
                summary=summary or title,
                description=text or summary or title,
                response_description=response_description,
                include_in_schema=include_in_schema,
                responses=with_headers(
                    responses_of(refuses, roles, body, query, also, answers) | bare_responses(bare),
                    status_code,
                    headers,
                ),
                response_class=_response_class(media_type),
                openapi_extra={"security": [{"bearer": []}] if roles else [], "x-roles": [str(role) for role in roles]},
                route_class_override=ThinRoute,
            )
            return handler

        return register

    def get(self, at: str, /, **options: Any) -> Callable[[Handler], Handler]:  # type: ignore[override]
        return self._declare("GET", at, options)

    def post(self, at: str, /, **options: Any) -> Callable[[Handler], Handler]:  # type: ignore[override]
        return self._declare("POST", at, options)

    def put(self, at: str, /, **options: Any) -> Callable[[Handler], Handler]:  # type: ignore[override]
        return self._declare("PUT", at, options)

    def delete(self, at: str, /, **options: Any) -> Callable[[Handler], Handler]:  # type: ignore[override]
        return self._declare("DELETE", at, options)

    def _declare(self, method: str, at: str, options: dict[str, Any]) -> Callable[[Handler], Handler]:
        return self.declare(method, at, path_types=options.pop("path", None), **options)


def thin_router(prefix: str = "", *, tags: Sequence[str]) -> ThinRouter:
    """A router whose routes lie under `prefix` and are shown under `tags`."""
    return ThinRouter(prefix=prefix, tags=list(tags))


def _models(handler: Handler) -> tuple[type[BaseModel] | None, type[BaseModel] | None]:
    """The body and query models, from the handler's annotation `Call[Body, Query]`."""
    hints = get_type_hints(handler)
    hints.pop("return", None)
    (annotation,) = hints.values()
    if annotation is Call:
        return None, None
    if get_origin(annotation) is not Call:
        raise TypeError(f"{handler.__qualname__}: the one parameter must be a Call")
    found = [None if kind is type(None) else kind for kind in get_args(annotation)]
    body, query = [*found, None][:2]
    return body, query


def _stub(handler: Handler, thin: Thin, types: Mapping[str, Any]) -> Callable[..., Any]:
    """A function that FastAPI reads for the OpenAPI and that is never called."""

    async def stub(**_: Any) -> None:
        raise AssertionError("a thin route's stub is never called")

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind, annotation=Annotated[hint, Path()]) for name, hint in types.items()]
    if thin.query is not None:
        parameters.append(inspect.Parameter("query", kind, annotation=Annotated[thin.query, Query()]))
    if thin.body is not None:
        parameters.append(inspect.Parameter("body", kind, annotation=thin.body))
    stub.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    stub.__name__ = handler.__name__
    stub.thin = thin  # type: ignore[attr-defined]
    return stub


def _texts(handler: Handler) -> tuple[str, str]:
    """Summary and description, from the docstring's first line and the rest."""
    first, _, rest = inspect.cleandoc(handler.__doc__ or handler.__name__).partition("\n")
    return first.rstrip("."), rest.strip()


def _response_class(media_type: str) -> type[Response]:
    """A class that only tells FastAPI the media type of the answer."""
    return type("Declared", (JSONResponse,), {"media_type": media_type})
