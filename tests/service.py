"""The real service in this process, and a client whose every answer is held against the service's own OpenAPI document."""

from __future__ import annotations

import asyncio
import copy
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from app.clock import micros
from app.db.database import Database
from app.primitives.jobs.ops.sweep import Batch
from app.runtime.runtime import Runtime
from app.settings import Settings

PROBLEM = "application/problem+json"
SECONDS = 60.0
DOCUMENT = "urn:tenure:openapi"


class Conformance:
    """Judges answers by the OpenAPI document: the status is declared, the media type too, and the body is what it says.

    No field may be there that the document does not name, so that a field is never added to answers alone.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = copy.deepcopy(dict(document))
        for schema in self._document.get("components", {}).get("schemas", {}).values():
            if "properties" in schema:
                schema.setdefault("additionalProperties", False)
        resource = Resource(contents=self._document, specification=DRAFT202012)
        self._registry: Registry[Any] = Registry().with_resource(DOCUMENT, resource)
        self.seen: set[tuple[str, str, int]] = set()

    def judge(self, response: httpx.Response) -> None:
        """Fail unless the answer is as declared. What no path of the document names must be a problem if it is an error."""
        assert response.headers.get("x-request-id"), "every answer names its request"
        if response.status_code in (423, 429, 503):
            assert int(response.headers["retry-after"]) >= 0
        if response.request.method == "HEAD":
            assert not response.content
            return
        method, template = response.request.method.lower(), self._template(response.request.url)
        if template is None or method not in self._document["paths"][template]:
            if response.status_code >= 400:
                self._fits(response, f"{DOCUMENT}#/components/schemas/Problem", PROBLEM)
            return
        where = f"{method.upper()} {template} -> {response.status_code}"
        declared = self._document["paths"][template][method]["responses"]
        assert str(response.status_code) in declared, f"{where}: not declared"
        self.seen.add((method, template, response.status_code))
        media = response.headers.get("content-type", "").partition(";")[0]
        content = declared[str(response.status_code)].get("content", {})
        assert media in content or not content, f"{where}: {media} is not declared"
        assert (media == PROBLEM) == (response.status_code >= 400), f"{where}: {media}"
        if "json" in media:
            steps = ("paths", template, method, "responses", str(response.status_code), "content", media, "schema")
            pointer = "/".join(step.replace("~", "~0").replace("/", "~1") for step in steps)
            self._fits(response, f"{DOCUMENT}#/{pointer}", media)

    def _fits(self, response: httpx.Response, schema: str, media: str) -> None:
        assert response.headers.get("content-type", "").partition(";")[0] == media
        validator = Draft202012Validator({"$ref": schema}, registry=self._registry)
        faults = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(response.json())]
        assert not faults, f"{response.request.method} {response.request.url.path}: {faults}"

    def _template(self, url: httpx.URL) -> str | None:
        segments = url.raw_path.decode("ascii").partition("?")[0].split("/")
        fits = []
        for template in self._document["paths"]:
            parts = template.split("/")
            if len(parts) == len(segments) and all(
                part == segment or (part.startswith("{") and segment)
                for part, segment in zip(parts, segments, strict=True)
            ):
                fits.append(template)
        return min(fits, key=lambda one: one.count("{"), default=None)


class Service:
    """A running service without its sweeps (`sweep` runs one), and `client`, which speaks to it from this machine.

    `client(...)` of httpx's own methods: `await service.client.post("/v1/jobs", json={...})`.
    """

    def __init__(self, app: Any, client: httpx.AsyncClient, conformance: Conformance) -> None:
        self.app = app
        self.client = client
        self.conformance = conformance
        self.runtime: Runtime = app.state.runtime

    def move(self, seconds: float) -> None:
        """Move the database's time, as the service sees it, for everything that is decided from now on."""
        self.runtime.clock.shift_micros += micros(seconds)

    async def sweep(self, lane: str) -> int:
        """Run one batch of a sweep, such as "jobs.abandon"; gives how much it changed."""
        changed: int = await self.runtime.lane(lane).submit(Batch())
        return changed

    async def at_desk(self, name: str, calls: int) -> None:
        """Return once so many calls wait at this desk."""

        async def they_wait() -> bool:
            return len(self.runtime.desks[name]) >= calls

        await until(they_wait)

    async def post(self, path: str, body: Any = None, *, status: int | None = None, **options: Any) -> Any:
        """POST and give the JSON answer; `status`, if given, is what the answer must have."""
        return self._checked(await self.client.post(path, json={} if body is None else body, **options), status)

    async def put(self, path: str, body: Any, *, status: int | None = None, **options: Any) -> Any:
        return self._checked(await self.client.put(path, json=body, **options), status)

    async def get(self, path: str, *, status: int | None = None, **options: Any) -> Any:
        return self._checked(await self.client.get(path, **options), status)

    def _checked(self, response: httpx.Response, status: int | None) -> Any:
        if status is not None:
            assert response.status_code == status, response.text
        return response.json()


async def until(condition: Callable[[], Awaitable[Any]], seconds: float = SECONDS) -> Any:
    """Ask again and again until it gives something true: a database and another process announce nothing."""
    async with asyncio.timeout(seconds):
        while not (found := await condition()):
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.02)
    return found


_documents: list[dict[str, Any]] = []


def document_of(app: Any) -> dict[str, Any]:
    """The OpenAPI document, which is the same for every database and takes half a second to make."""
    if not _documents:
        _documents.append(app.openapi())
    return _documents[0]


@asynccontextmanager
async def running(database: Database, **settings: Any) -> AsyncIterator[Service]:
    """Run the service on `database` for the length of the block."""
    from app.main import create_app

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    app = create_app(Settings(**settings), database=database, loops=False)
    conformance = Conformance(document_of(app))

    async def judge(response: httpx.Response) -> None:
        await response.aread()
        conformance.judge(response)

    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
    try:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1", event_hooks={"response": [judge]}, timeout=60
            ) as client,
        ):
            yield Service(app, client, conformance)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
