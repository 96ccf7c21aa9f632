"""A service on an embedded database with keys, audit and some routes of the tests' own; over ASGI or a real server."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import uvicorn

from app.access import ANONYMOUS, Role
from app.db import migrate
from app.db.database import Database
from app.http.application import Application, build
from app.logs import redact
from app.main import assemble
from app.primitives.audit.model import new_id
from app.primitives.keys.model import Create, mint
from app.registry import PRIMITIVES
from app.runtime.runtime import Runtime
from app.settings import Settings
from tests.http import demo

BASE = "http://localhost:8080"


@dataclass
class Service:
    """A running application and what a test needs to speak to it."""

    app: Application
    runtime: Runtime
    stack: AsyncExitStack
    keys: dict[str, str] = field(default_factory=dict)

    async def client(
        self, key: str | None = None, *, peer: str = "127.0.0.1", base: str = BASE, **headers: str
    ) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=(peer, 4321))
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return await self.stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url=base, headers=headers)
        )

    async def make_key(self, *roles: Role, patterns: tuple[str, ...] = (), expires_at: int | None = None) -> str:
        """A key made without HTTP, in force at once. The first must be an admin's."""
        new = mint()
        create = Create(new.id, new.digest, "test", roles, patterns, expires_at, ANONYMOUS, None, new_id())
        await self.runtime.lane("keys.create").submit(create)
        await self.runtime.state("keys").refresh()
        return new.text

    async def key_of(self, role: Role) -> str:
        """One key for each role, made when first asked for."""
        if Role.ADMIN not in self.keys:
            self.keys[Role.ADMIN] = await self.make_key(Role.ADMIN)
        if role not in self.keys:
            self.keys[role] = await self.make_key(role)
        return self.keys[role]

    @asynccontextmanager
    async def served(self) -> AsyncIterator[int]:
        """Serve on a real port with uvicorn; gives the port."""
        config = uvicorn.Config(self.app, host="127.0.0.1", port=0, lifespan="off", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        server.capture_signals = nullcontext  # type: ignore[method-assign]  # signals belong to the test runner here
        task = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0)
        try:
            yield server.servers[0].sockets[0].getsockname()[1]
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def _started(url: str, **options: Any) -> AsyncIterator[Service]:
    settings = Settings(database_url=url, **options)
    database = Database(url)
    database.open()
    runtime = assemble(settings, database, loops=True)
    routers = [primitive.router for primitive in PRIMITIVES]
    app = build(runtime, [*routers, demo.router, demo.plain], checks=[demo.checks], collectors=[demo.collect])
    app.state.seen = asyncio.Queue()
    await runtime.start()
    await runtime.state("keys").refresh()
    try:
        async with AsyncExitStack() as stack:
            yield Service(app, runtime, stack)
    finally:
        await runtime.stop()
        database.shutdown()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database file to copy."""
    path = tmp_path_factory.mktemp("http") / "template.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def url(template: Path, tmp_path: Path) -> str:
    path = tmp_path / "tenure.db"
    shutil.copy(template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def start(url: str) -> Callable[..., Any]:
    """Starts a service with settings of the test's own."""
    return lambda **options: _started(url, **options)


@pytest.fixture
async def service(start: Callable[..., Any]) -> AsyncIterator[Service]:
    async with start() as service:
        yield service


@pytest.fixture(autouse=True)
def captured_logs() -> Iterator[list[dict[str, Any]]]:
    """Every event, after redaction, as it would be written."""
    events: list[dict[str, Any]] = []

    def keep(_logger: Any, _method: str, event: Any) -> Any:
        events.append(dict(event))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.format_exc_info, redact, keep],
        cache_logger_on_first_use=False,
    )
    yield events
    structlog.configure(**before)
