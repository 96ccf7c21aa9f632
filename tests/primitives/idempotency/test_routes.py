"""Idempotency over HTTP: shapes, statuses, waiting, bad input. Every answer is held against the OpenAPI document."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.service import Service

pytestmark = pytest.mark.anyio
KEY = {"scope": "POST /orders", "key": "k"}
CLAIM = "claim-of-my-own-1234"


async def check(service: Service, status: int | None = 200, **fields: Any) -> Any:
    return await service.post("/v1/idempotency/check", KEY | {"fingerprint": "f"} | fields, status=status)


async def say(service: Service, verb: str, owned: Any, status: int = 200, **fields: Any) -> Any:
    body = KEY | {"token": owned["reservation"]["token"]} | fields
    return await service.post(f"/v1/idempotency/{verb}", body, status=status)


async def test_the_life_of_a_key(service: Service) -> None:
    owned = await check(service, lease_seconds=30)
    assert owned["outcome"] == "acquired"
    assert (owned["reservation"]["fence"], owned["attempt"], owned["replayed"]) == (1, 1, False)
    response = await service.client.post("/v1/idempotency/check", json=KEY | {"fingerprint": "f"})
    told = response.json()
    assert (told["outcome"], told["reservation"]) == ("in_progress", None)
    assert told["expires_at"] == owned["reservation"]["expires_at"]
    assert 1 <= int(response.headers["retry-after"]) <= 30
    beat = await say(service, "heartbeat", owned, lease_seconds=60)
    assert beat["expires_at"] > told["expires_at"]
    assert (await check(service, 409, fingerprint="another"))["code"] == "idempotency_conflict"
    done = await say(service, "complete", owned, result={"order": 17})
    assert done == KEY | {"state": "completed", "attempt": 1, "fence": 1, "replayed": False}
    assert (await say(service, "complete", owned, result={"order": 17}))["replayed"]
    assert (await say(service, "complete", owned, 409, result=18))["code"] == "settlement_conflict"
    assert (await say(service, "heartbeat", owned, 409))["code"] == "reservation_lost"
    again = await check(service)
    assert (again["outcome"], again["result"]) == ("replay", {"order": 17})


async def test_results_come_back_byte_for_byte_up_to_the_limit(service: Service) -> None:
    """Fault 27: key order, big integers, decimals and duplicate members stay as they were sent."""
    owned = await check(service)
    result = '{"z": 1.10, "a":123456789012345678901234567890, "a": "\\u00e9é", "n":null}'
    body = json.dumps(KEY | {"token": owned["reservation"]["token"]})[:-1] + f', "result":  {result} }}'
    headers = {"content-type": "application/json"}
    response = await service.client.post("/v1/idempotency/complete", content=body.encode(), headers=headers)
    assert response.status_code == 200
    response = await service.client.post("/v1/idempotency/check", json=KEY | {"fingerprint": "f"})
    assert f'"result":{result},' in response.text
    limit = service.runtime.settings.max_payload_bytes
    owned = await check(service, key="large")
    refused = await say(service, "complete", owned, 413, key="large", result="x" * limit)
    assert refused["code"] == "payload_too_large"
    await say(service, "complete", owned, key="large", result="x" * (limit - 2))
    assert (await check(service, key="large"))["result"] == "x" * (limit - 2)


async def test_null_is_a_result(service: Service) -> None:
    owned = await check(service)
    await say(service, "complete", owned, result=None)
    told = await check(service)
    assert (told["outcome"], told["result"]) == ("replay", None)


async def test_a_request_is_digested_in_its_canonical_form(service: Service) -> None:
    first = {"scope": "s", "key": "k", "request": {"b": 1.0, "a": [1, "é"]}}
    assert (await service.post("/v1/idempotency/check", first, status=200))["outcome"] == "acquired"
    body = '{"request":{"a":[1.0,"\\u00e9"],"b":1},"key":"k","scope":"s"}'
    headers = {"content-type": "application/json"}
    response = await service.client.post("/v1/idempotency/check", content=body.encode(), headers=headers)
    assert response.json()["outcome"] == "in_progress"
    other = first | {"request": {"b": 1, "a": [1, "e"]}}
    assert (await service.post("/v1/idempotency/check", other, status=409))["code"] == "idempotency_conflict"
    large = first | {"key": "large", "request": ["x" * 1000] * 200}
    assert (await service.post("/v1/idempotency/check", large, status=200))["outcome"] == "acquired"
    assert (await service.post("/v1/idempotency/check", large, status=200))["outcome"] == "in_progress"


async def test_failures_and_doubts_are_told(service: Service) -> None:
    owned = await check(service)
    opened = await say(service, "fail", owned, category="db_down", retry=True)
    assert opened["state"] == "open"
    owned = await check(service)
    assert owned["attempt"] == 2
    await say(service, "unknown", owned, category="answer_lost", message="no answer within 10 s")
    told = await check(service)
    assert (told["outcome"], told["reason"]) == ("reconcile", "answer_lost")
    (item,) = (await service.get("/v1/idempotency", status=200))["items"]
    assert (item["scope"], item["state"], item["category"]) == ("POST /orders", "unknown", "answer_lost")
    assert "k" not in item
    assert "token" not in str(item)
    verdict = KEY | {"verdict": "failed", "evidence": {"asked": "the provider"}}
    decided = await service.post("/v1/idempotency/reconcile", verdict, status=200)
    assert decided["state"] == "failed"
    assert (await service.post("/v1/idempotency/reconcile", verdict, status=200))["replayed"]
    other = verdict | {"verdict": "completed", "result": 1}
    assert (await service.post("/v1/idempotency/reconcile", other, status=409))["code"] == "verdict_conflict"
    told = await check(service)
    assert (told["outcome"], told["failure"]) == ("failed", {"category": "verdict", "message": None})
    (entry,) = (await service.get("/v1/audit?kind=idempotency_key", status=200))["items"]
    assert entry["details"]["evidence"] == {"asked": "the provider"}


async def test_a_waiting_check_is_told_as_soon_as_the_work_is_done(service: Service) -> None:
    owned = await check(service)
    waiting = [asyncio.create_task(check(service, wait_seconds=30)) for _ in range(5)]
    await service.at_desk("idempotency", 5)
    await say(service, "complete", owned, result="done")
    told = await asyncio.gather(*waiting)
    assert [(one["outcome"], one["result"]) for one in told] == [("replay", "done")] * 5


async def test_a_key_that_is_reopened_goes_to_one_of_those_who_wait(service: Service) -> None:
    owned = await check(service)
    waiting = [asyncio.create_task(check(service, wait_seconds=0.5)) for _ in range(3)]
    await service.at_desk("idempotency", 3)
    await say(service, "fail", owned, category="db_down", retry=True)
    told = await asyncio.gather(*waiting)
    assert sorted(one["outcome"] for one in told) == ["acquired", "in_progress", "in_progress"]


async def test_a_wait_that_ends_is_told_that_it_goes_on(service: Service) -> None:
    await check(service)
    told = await check(service, wait_seconds=0.02)
    assert told["outcome"] == "in_progress"


@pytest.mark.parametrize(
    "fields",
    [
        {"scope": ""},
        {"scope": "x" * 256},
        {"key": ""},
        {"key": "é" * 128},
        {"key": 7},
        {"fingerprint": None},
        {"fingerprint": ""},
        {"request": {}},
        {"lease_seconds": 0},
        {"lease_seconds": 86_401},
        {"lease_seconds": "60"},
        {"retention_seconds": 0},
        {"retention_seconds": 1e300},
        {"on_owner_lost": "retry"},
        {"wait_seconds": 31},
        {"claim_id": "short"},
        {"ttl": 1},
    ],
)
async def test_what_does_not_fit_is_refused_and_takes_nothing(service: Service, fields: dict[str, Any]) -> None:
    refused = await check(service, 422, **fields)
    assert refused["code"] == "validation_failed"
    assert (await service.get("/v1/idempotency?state=running"))["items"] == []


async def test_a_request_with_a_member_twice_is_refused(service: Service) -> None:
    body = b'{"scope":"s","key":"k","request":{"a":1,"a":2}}'
    headers = {"content-type": "application/json"}
    response = await service.client.post("/v1/idempotency/check", content=body, headers=headers)
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "#/request"


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        ("complete", {}),
        ("fail", {"category": "x"}),
        ("fail", {"category": "a b", "retry": False}),
        ("fail", {"retry": False}),
        ("unknown", {"message": "x" * 2001}),
        ("heartbeat", {"lease_seconds": 0}),
        ("reconcile", {"verdict": "completed"}),
        ("reconcile", {"verdict": "maybe", "evidence": {}}),
        ("reconcile", {"verdict": "reopen", "evidence": {}, "result": 1}),
    ],
)
async def test_what_an_owner_says_wrongly_changes_nothing(service: Service, verb: str, fields: dict[str, Any]) -> None:
    owned = await check(service)
    token = {} if verb == "reconcile" else {"token": owned["reservation"]["token"]}
    refused = await service.post(f"/v1/idempotency/{verb}", KEY | token | fields, status=422)
    assert refused["code"] == "validation_failed"
    assert (await check(service))["outcome"] == "in_progress"


async def test_pages_hold_every_key_once(service: Service) -> None:
    for number in range(7):
        owned = await check(service, key=f"k{number}")
        await say(service, "unknown", owned, key=f"k{number}")
    seen: list[str] = []
    page = await service.get("/v1/idempotency?limit=3", status=200)
    seen += [item["key_digest"] for item in page["items"]]
    while page["next_cursor"]:
        page = await service.get(f"/v1/idempotency?limit=3&cursor={page['next_cursor']}", status=200)
        seen += [item["key_digest"] for item in page["items"]]
    assert len(seen) == len(set(seen)) == 7
    page = await service.get("/v1/idempotency?state=unknown&scope=else", status=200)
    assert page["items"] == []


async def test_health_and_metrics_tell_of_keys(service: Service) -> None:
    owned = await check(service)
    await say(service, "unknown", owned)
    health = await service.get("/health")
    (found,) = [one for one in health["checks"] if one["name"] == "idempotency.unknown"]
    assert (found["status"], found["value"]) == ("warn", 1)
    text = (await service.client.get("/metrics")).text
    assert 'tenure_idempotency_checks_total{outcome="acquired"} 1.0' in text
    assert 'tenure_idempotency_keys{state="unknown"} 1.0' in text
