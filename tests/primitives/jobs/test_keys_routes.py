"""Keys over HTTP: what is sent, what is refused, what is told; every answer is held against the OpenAPI document too."""

from __future__ import annotations

from typing import Any

import pytest

from app.primitives.jobs.routes.commands import new_job
from app.primitives.jobs.schemas.work import EnqueueJob
from app.reservations import settlement_digest
from tests.primitives.jobs.test_routes import claimed, enqueued, token
from tests.service import Service

pytestmark = pytest.mark.anyio

JOB = {"queue": "q", "type": "t", "payload": {}}


async def test_a_unique_key_is_answered_with_its_holder_or_refused(service: Service) -> None:
    first = await enqueued(service, unique={"key": "k"})
    assert first["deduplicated"] is False
    again = await service.post("/v1/jobs", {**JOB, "payload": 2, "unique": {"key": "k"}}, status=200)
    assert (again["id"], again["deduplicated"], again["replayed"]) == (first["id"], True, False)
    rejected = await service.post("/v1/jobs", {**JOB, "unique": {"key": "k", "on_conflict": "reject"}}, status=409)
    assert (rejected["code"], rejected["job_id"], rejected["state"]) == ("unique_conflict", first["id"], "available")
    replaced = await service.post(
        "/v1/jobs", {**JOB, "payload": 3, "unique": {"key": "k", "on_conflict": "replace"}}, status=200
    )
    assert (replaced["id"], replaced["deduplicated"]) == (first["id"], True)
    (mine,) = await claimed(service)
    assert (mine["id"], mine["payload"]) == (first["id"], 3)
    late = await service.post("/v1/jobs", {**JOB, "unique": {"key": "k", "on_conflict": "replace"}}, status=409)
    assert (late["code"], late["state"]) == ("unique_conflict", "running")
    read = await service.get(f"/v1/jobs/{first['id']}", status=200)
    assert read["unique"] == {"key": "k", "until": "finished"}
    assert (read["debounce"], read["concurrency"]) == (None, None)
    assert [event["kind"] for event in read["events"]] == ["enqueued", "replaced", "claimed"]
    assert (await service.client.get("/problems/unique_conflict")).status_code == 200


async def test_a_batch_has_a_result_for_each_of_its_keys(service: Service) -> None:
    bodies = [
        {**JOB, "unique": {"key": "a"}},
        {**JOB, "unique": {"key": "a"}},
        {**JOB, "unique": {"key": "a", "on_conflict": "reject"}},
        {**JOB, "concurrency": {"key": "a", "limit": 1}},
        {**JOB, "concurrency": {"key": "a", "limit": 1}},
    ]
    results = (await service.post("/v1/jobs/batch", {"jobs": bodies}, status=200))["results"]
    assert [one["status"] for one in results] == [201, 200, 409, 201, 201]
    assert results[2]["problem"]["job_id"] == results[0]["job"]["id"] == results[1]["job"]["id"]
    assert [one["job"]["state"] for one in results[3:]] == ["available", "blocked"]


async def test_debounced_enqueues_become_one_run(service: Service) -> None:
    first = await enqueued(service, debounce={"key": "d", "delay_seconds": 5})
    assert first["state"] == "scheduled"
    service.move(3)
    again = await service.post(
        "/v1/jobs", {**JOB, "payload": 2, "debounce": {"key": "d", "delay_seconds": 5}}, status=200
    )
    assert (again["id"], again["deduplicated"]) == (first["id"], True)
    assert again["available_at"] > first["available_at"]
    read = await service.get(f"/v1/jobs/{first['id']}", status=200)
    assert read["debounce"]["key"] == "d"
    assert read["debounce"]["latest_at"] > again["available_at"]
    service.move(6)
    await service.sweep("jobs.promote")
    (mine,) = await claimed(service)
    assert mine["payload"] == 2


async def test_a_concurrency_key_blocks_explains_and_lets_go(service: Service) -> None:
    key = {"concurrency": {"key": "é😀", "limit": 1}}
    first, second = await enqueued(service, **key), await enqueued(service, **key)
    assert (first["state"], second["state"]) == ("available", "blocked")
    (mine,) = await claimed(service)
    assert await claimed(service) == []
    told = await service.get(f"/v1/jobs/{second['id']}/explain", status=200)
    (reason, *_) = told["reasons"]
    assert (told["state"], reason["code"]) == ("blocked", "key_held")
    evidence = reason["evidence"]
    assert (evidence["key"], evidence["limit"], evidence["ahead"]) == ("é😀", 1, 0)
    assert evidence["holders"] == [
        {"id": first["id"], "state": "running", "expires_at": mine["reservation"]["expires_at"]}
    ]
    listed = await service.get("/v1/jobs?state=blocked", status=200)
    assert [(one["id"], one["concurrency"]) for one in listed["items"]] == [(second["id"], {"key": "é😀", "limit": 1})]
    queue = await service.get("/v1/queues/q", status=200)
    assert (queue["counts"]["blocked"], queue["counts"]["running"]) == (1, 1)
    stats = await service.get("/v1/stats", status=200)
    assert stats["queues"][0]["counts"]["blocked"] == 1
    checks = (await service.client.get("/health")).json()["checks"]
    assert [check["value"] for check in checks if check["name"] == "jobs.q.depth"] == [1]
    await service.post(f"/v1/jobs/{first['id']}/complete", {"token": token(mine)}, status=200)
    (mine,) = await claimed(service)
    assert mine["id"] == second["id"]


async def test_a_worker_needs_one_call_a_round_to_work_through_a_key(service: Service) -> None:
    ids = [(await enqueued(service, concurrency={"key": "k", "limit": 1}))["id"] for _ in range(3)]
    (mine,) = await claimed(service)
    order = [mine["id"]]
    while True:
        results = [{"id": mine["id"], "token": token(mine), "outcome": "succeeded"}]
        jobs = await claimed(service, settlements=results)
        if not jobs:
            break
        (mine,) = jobs
        order.append(mine["id"])
    assert order == ids


async def test_a_retry_whose_unique_key_is_held_is_refused(service: Service) -> None:
    first = await enqueued(service, unique={"key": "k"})
    await service.post(f"/v1/jobs/{first['id']}/cancel", {"reason": "r"}, status=200)
    second = await enqueued(service, unique={"key": "k"})
    refused = await service.post(f"/v1/jobs/{first['id']}/retry", {"reason": "r"}, status=409)
    assert (refused["code"], refused["job_id"]) == ("unique_conflict", second["id"])


async def test_an_idempotency_key_covers_the_keys(service: Service) -> None:
    body = {**JOB, "idempotency_key": "i", "unique": {"key": "k"}, "concurrency": {"key": "c", "limit": 2}}
    first = await service.post("/v1/jobs", body, status=201)
    assert await service.post("/v1/jobs", body, status=200) == {**first, "replayed": True}
    for change in ({"unique": {"key": "l"}}, {"concurrency": {"key": "c", "limit": 3}}, {"unique": None}):
        assert (await service.post("/v1/jobs", {**body, **change}, status=409))["code"] == "idempotency_conflict"
    again = {**JOB, "idempotency_key": "j", "unique": {"key": "k"}}
    for replayed in (False, True):
        answer = await service.post("/v1/jobs", again, status=200)
        assert (answer["id"], answer["deduplicated"], answer["replayed"]) == (first["id"], True, replayed)


def test_the_fingerprint_of_a_job_without_keys_is_what_it_was_before_there_were_any() -> None:
    """A key that was used before an upgrade replays after it."""
    body = EnqueueJob(queue="q", type="t", payload=b"1", idempotency_key="i")
    expected = settlement_digest("q", "t", 1, b"1", 0, None, None, None, None, None, None, None)
    assert new_job(body).fingerprint == expected


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"unique": {"key": "k"}, "debounce": {"key": "k", "delay_seconds": 1}}, "#"),
    ({"debounce": {"key": "k", "delay_seconds": 1}, "delay_seconds": 1}, "#"),
    ({"debounce": {"key": "k", "delay_seconds": 1}, "available_at": "2030-01-01T00:00:00Z"}, "#"),
    ({"debounce": {"key": "k", "delay_seconds": 0}}, "#/debounce/delay_seconds"),
    ({"debounce": {"key": "k", "delay_seconds": 5, "max_wait_seconds": 4}}, "#/debounce"),
    ({"unique": {"key": ""}}, "#/unique/key"),
    ({"unique": {"key": "é" * 128}}, "#/unique/key"),
    ({"unique": {"key": "k", "until": "never"}}, "#/unique/until"),
    ({"unique": {"key": "k", "on_conflict": "ignore"}}, "#/unique/on_conflict"),
    ({"unique": {"key": "k", "ttl": 1}}, "#/unique/ttl"),
    ({"concurrency": {"key": "k"}}, "#/concurrency/limit"),
    ({"concurrency": {"key": "k", "limit": 0}}, "#/concurrency/limit"),
    ({"concurrency": {"key": "k", "limit": 10_001}}, "#/concurrency/limit"),
]


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize(("fields", "pointer"), WRONG)
async def test_keys_that_make_no_sense_are_refused(service: Service, fields: dict[str, Any], pointer: str) -> None:
    refused = await service.post("/v1/jobs", {**JOB, **fields}, status=422)
    assert [error["pointer"] for error in refused["errors"]] == [pointer], refused
