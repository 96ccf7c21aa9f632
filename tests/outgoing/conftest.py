"""Every async test here runs on both loops that the service may run on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.outgoing.addresses import Targets
from app.outgoing.client import Outgoing

LOOPBACK = Targets.parse(["127.0.0.0/8", "::1"])


@pytest.fixture(
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def outgoing(anyio_backend: Any) -> AsyncIterator[Outgoing]:
    """The real client, which may call this machine."""
    async with Outgoing(LOOPBACK) as client:
        yield client
