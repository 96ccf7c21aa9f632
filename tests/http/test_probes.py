"""Probes, health and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.access import Role
from app.errors import OVERLOADED, Refusal
from app.http.health import SHARED_FOR
from tests.http.conftest import Service
from tests.http.test_requests import is_problem

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/startupz", "/health"])
async def test_a_probe_passes_and_is_not_cached(service: Service, path: str) -> None:
    client = await service.client()
    answer = await client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/health+json"), answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert (await client.head(path)).content == b""
    assert (await client.head(path)).status_code == 200


async def test_readiness_writes_at_most_once_a_second_whoever_asks(service: Service) -> None:
    client = await service.client()
    lane = service.runtime.lane("service.beat")
    await asyncio.gather(*(client.get("/readyz") for _ in range(20)))
    for _ in range(20):
        await client.get("/readyz")
    assert 1 <= lane.served <= 3  # a slow machine may take more than a second for forty answers


async def test_liveness_asks_the_database_nothing(service: Service) -> None:
    client = await service.client()
    served = sum(lane.served for lane in service.runtime.lanes if lane.spec.name.startswith("service.beat"))
    await client.get("/livez")
    assert sum(lane.served for lane in service.runtime.lanes if lane.spec.name.startswith("service.beat")) == served


async def test_readiness_names_its_reason(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await service.client()
    lane = service.runtime.lane("service.beat")
    monkeypatch.setattr(lane, "capacity", 0)
    down = await client.get("/readyz")
    assert (down.status_code, down.json()["status"]) == (503, "fail")
    assert "overloaded" in down.json()["output"]
    assert (await client.get("/livez")).status_code == 200
    monkeypatch.undo()
    service.app.state.readiness._asked -= SHARED_FOR
    assert (await client.get("/readyz")).status_code == 200
    service.runtime.draining.set()
    down = await client.get("/readyz")
    assert (down.status_code, down.json()["output"]) == (503, "this process ends")
    assert (await client.get("/livez")).status_code == 200


async def test_readiness_fails_when_a_loop_stalls(service: Service) -> None:
    loop = service.runtime.loops["service.upkeep"]
    await loop.stop()
    down = await (await service.client()).get("/readyz")
    assert (down.status_code, "service.upkeep" in down.json()["output"]) == (503, True)


async def test_health_shows_the_checks_of_primitives_with_their_figures(service: Service) -> None:
    client = await service.client()
    health = (await client.get("/health")).json()
    shown = {check["name"]: check for check in health["checks"]}
    assert health["status"] == "warn"
    assert shown["demo.depth"] == {"name": "demo.depth", "status": "warn", "value": 7, "unit": "jobs", "output": "deep"}
    assert {"database.write", "database.schema", "api_keys.age", "loop.keys.directory"} <= set(shown)


async def test_health_outlives_a_primitive_that_cannot_be_asked(service: Service) -> None:
    def broken(_runtime: Any) -> Any:
        raise Refusal(OVERLOADED, "Too much.")

    service.app.state.checks = (broken,)
    answer = await (await service.client()).get("/health")
    assert (answer.status_code, "overloaded" in answer.json()["output"]) == (503, True)


def figures(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_count_by_template(service: Service) -> None:
    client = await service.client()
    for _ in range(3):
        await client.get("/v1/demo/things/secret-name")
    await client.get("/v1/secret-path")
    await client.request("BREW", "/livez")
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found = figures(answer.text)
    labels = frozenset({"method": "GET", "route": "/v1/demo/things/{name}", "status": "200"}.items())
    assert found["tenure_http_requests_total", labels] == 3
    assert (
        found[
            "tenure_http_requests_total", frozenset({"method": "other", "route": "unmatched", "status": "405"}.items())
        ]
        == 1
    )
    assert found["tenure_demo_depth", frozenset()] == 7
    names = {name for name, _ in found}
    assert all(name.startswith(("tenure_", "python_gc_")) for name in names), names
    assert {
        "tenure_lane_waiting",
        "tenure_loop_failures_total",
        "tenure_build_info",
        "tenure_http_request_seconds_bucket",
    } <= names
    assert "secret" not in answer.text


async def test_two_applications_do_not_mix_their_metrics(service: Service, start: Callable[..., Any]) -> None:
    from app.http.metrics import Metrics

    Metrics(service.runtime)
    Metrics(service.runtime)


async def test_metrics_may_need_a_key(start: Callable[..., Any]) -> None:
    async with start(metrics_access="key") as service:
        viewer, worker = await service.key_of(Role.VIEWER), await service.key_of(Role.WORKER)
        is_problem(await (await service.client()).get("/metrics"), 401, "unauthenticated")
        is_problem(await (await service.client(worker)).get("/metrics"), 403, "forbidden")
        assert (await (await service.client(viewer)).get("/metrics")).status_code == 200
