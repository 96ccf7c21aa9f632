"""The cache over HTTP: shapes, statuses, waiting, conditions, bad input. Every answer is held against the OpenAPI document."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.service import Service

pytestmark = pytest.mark.anyio
ENTRY = "/v1/cache/plans/customer%2F9"
CLAIM = "claim-of-my-own-1234"


async def put(service: Service, value: Any = 1, path: str = ENTRY, status: int = 200, **fields: Any) -> Any:
    return await service.put(path, {"value": value, "ttl_seconds": 60} | fields, status=status)


async def remember(service: Service, path: str = ENTRY, status: int = 200, **fields: Any) -> Any:
    return await service.post(f"{path}/remember", fields, status=status)


async def fill(
    service: Service, taken: Any, value: Any = 1, path: str = ENTRY, status: int = 200, **fields: Any
) -> Any:
    body = {"token": taken["reservation"]["token"], "value": value, "ttl_seconds": 60} | fields
    return await service.post(f"{path}/fill", body, status=status)


async def fail(service: Service, taken: Any, path: str = ENTRY, status: int = 200) -> Any:
    return await service.post(f"{path}/fill-failed", {"token": taken["reservation"]["token"]}, status=status)


async def test_the_life_of_a_value(service: Service) -> None:
    assert (await service.get(ENTRY, status=404))["code"] == "not_found"
    stored = await put(service, {"plan": "pro"}, stale_seconds=30, version="v1")
    assert (stored["namespace"], stored["key"], stored["version"]) == ("plans", "customer/9", "v1")
    assert stored["expires_at"] < stored["stale_until"]
    found = await service.get(ENTRY, status=200)
    assert (found["value"], found["state"], found["version"]) == ({"plan": "pro"}, "fresh", "v1")
    assert 0 <= found["age_seconds"] < 60
    service.move(60)
    assert (await service.get(ENTRY, status=200))["state"] == "stale"
    service.move(30)
    await service.get(ENTRY, status=404)
    await put(service)
    assert (await service.client.delete(ENTRY)).json()["deleted"]
    await service.get(ENTRY, status=404)
    deleted = (await service.client.delete(ENTRY)).json()
    assert deleted == {"namespace": "plans", "key": "customer/9", "deleted": False}


async def test_values_come_back_byte_for_byte_up_to_the_limit(service: Service) -> None:
    value = '{"z": 1.10, "a":123456789012345678901234567890, "a": "\\u00e9é", "n":null}'
    headers = {"content-type": "application/json"}
    body = f'{{"ttl_seconds": 60, "value":  {value} }}'
    assert (await service.client.put(ENTRY, content=body.encode(), headers=headers)).status_code == 200
    assert value in (await service.client.get(ENTRY)).text
    taken = await remember(service, "/v1/cache/plans/other")
    body = json.dumps({"token": taken["reservation"]["token"], "ttl_seconds": 60})[:-1] + f', "value": {value}}}'
    filled = await service.client.post("/v1/cache/plans/other/fill", content=body.encode(), headers=headers)
    assert filled.status_code == 200
    assert value in (await service.client.post("/v1/cache/plans/other/remember", json={})).text
    limit = service.runtime.settings.max_payload_bytes
    assert (await put(service, "x" * limit, status=413))["code"] == "payload_too_large"
    await put(service, "x" * (limit - 2))
    await put(service, None)
    assert (await service.get(ENTRY, status=200))["value"] is None


async def test_who_has_the_value_is_told_so(service: Service) -> None:
    await put(service, "v", stale_seconds=60)
    response = await service.client.get(ENTRY)
    tag = response.headers["etag"]
    assert response.headers["age"] == "0"
    assert response.headers["cache-control"] == "private, no-cache"
    for sent in (tag, tag.removeprefix("W/"), f'"other", {tag}', "*"):
        same = await service.client.get(ENTRY, headers={"if-none-match": sent})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
        assert "content-type" not in same.headers
        assert "content-length" not in same.headers
    for sent in ('"other"', "", "W/"):
        assert (await service.client.get(ENTRY, headers={"if-none-match": sent})).status_code == 200
    await put(service, "v", stale_seconds=60)
    assert (await service.client.get(ENTRY)).headers["etag"] == tag, "the same value has the same tag"
    service.move(60)
    stale = await service.client.get(ENTRY, headers={"if-none-match": tag})
    assert (stale.status_code, stale.json()["state"]) == (200, "stale"), "its state is another now"
    assert stale.headers["age"] == "60"
    await put(service, "w")
    assert (await service.client.get(ENTRY)).headers["etag"] not in (tag, stale.headers["etag"])


async def test_head_tells_whether_there_is_a_value(service: Service) -> None:
    assert (await service.client.head(ENTRY)).status_code == 404
    await put(service, "v")
    head, whole = await service.client.head(ENTRY), await service.client.get(ENTRY)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", whole.headers["etag"])
    same = await service.client.head(ENTRY, headers={"if-none-match": head.headers["etag"]})
    assert same.status_code == 304


async def test_keys_are_percent_encoded_and_anything_but_empty(service: Service) -> None:
    paths = ["a", "A", "a%20", "a%2Fb", "a%252Fb", "%C3%A9", "e%CC%81", "%F0%9F%98%80", "%00", "..", "fill", "a%3Fb"]
    paths = [f"/v1/cache/odd/{path}" for path in paths if path != ".."]
    for number, path in enumerate(paths):
        await put(service, number, path)
    assert [(await service.get(path, status=200))["value"] for path in paths] == list(range(len(paths)))
    assert (await service.put("/v1/cache/odd/%FF", {"value": 1, "ttl_seconds": 1}, status=422))["errors"]
    assert (await service.put(f"/v1/cache/odd/{'a' * 256}", {"value": 1, "ttl_seconds": 1}, status=422))["errors"]
    assert (await service.put("/v1/cache/a%20b/k", {"value": 1, "ttl_seconds": 1}, status=422))["errors"]


@pytest.mark.parametrize("namespace", ["%2E", "%2E%2E"])
async def test_a_namespace_that_clients_take_out_of_a_path_is_refused(service: Service, namespace: str) -> None:
    """`/v1/cache/./plans` becomes `/v1/cache/plans` on its way: a DELETE of a key would clear another namespace."""
    url = httpx.URL("http://127.0.0.1").copy_with(raw_path=f"/v1/cache/{namespace}/k".encode())
    refused = await service.client.put(url, json={"value": 1, "ttl_seconds": 60})
    assert (refused.status_code, refused.json()["code"]) == (422, "validation_failed")
    policy = url.copy_with(raw_path=f"/v1/cache-policies/{namespace}".encode())
    assert (await service.client.put(policy, json={})).status_code == 422
    await put(service, 1, "/v1/cache/.../k")


async def test_of_two_hundred_who_miss_one_key_one_fills_it(service: Service) -> None:
    calls = [asyncio.create_task(remember(service, wait_seconds=30)) for _ in range(200)]
    done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    (taken,) = (task.result() for task in done)
    assert taken["state"] == "fill"
    await service.at_desk("cache", 199)
    await fill(service, taken, "made once")
    told = await asyncio.gather(*waiting)
    assert {(one["state"], one["value"], one["reservation"]) for one in told} == {("fresh", "made once", None)}


async def test_the_next_who_waits_is_promoted_when_a_filler_fails_or_is_lost(service: Service) -> None:
    taken = await remember(service, lease_seconds=5)
    assert (taken["state"], taken["reservation"]["fence"], taken["value"]) == ("fill", 1, None)
    waiting = {asyncio.create_task(remember(service, wait_seconds=30, lease_seconds=5)) for _ in range(3)}
    await service.at_desk("cache", 3)
    await fail(service, taken)
    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    (second,) = (task.result() for task in done)
    assert (second["state"], second["reservation"]["fence"]) == ("fill", 2)
    await service.at_desk("cache", 2)
    service.move(6)  # the second one is lost
    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    (third,) = (task.result() for task in done)
    assert (third["state"], third["reservation"]["fence"]) == ("fill", 3)
    late = await fill(service, second, status=409)
    assert (late["code"], late["reason"], late["current_fence"]) == ("reservation_lost", "superseded", 3)
    assert (await fill(service, third, "v"))["fence"] == 3
    (last,) = waiting
    assert (await last)["value"] == "v"
    assert (await fill(service, third, "v"))["replayed"]
    assert (await fill(service, third, "w", status=409))["code"] == "settlement_conflict"


async def test_a_wait_that_ends_is_told_that_it_is_being_filled(service: Service) -> None:
    taken = await remember(service)
    told = await remember(service, wait_seconds=0.05)
    assert (told["state"], told["value"], told["reservation"]) == ("filling", None, None)
    assert told["expires_at"] == taken["reservation"]["expires_at"]


async def test_while_it_is_filled_anew_a_stale_value_is_given_at_once(service: Service) -> None:
    await put(service, "old", ttl_seconds=10, stale_seconds=60)
    service.move(10)
    taken = await remember(service, claim_id=CLAIM)
    assert (taken["state"], taken["value"]) == ("fill", "old")
    for fields in ({}, {"wait_seconds": 30}, {"claim_id": CLAIM + "0", "wait_seconds": 30}):
        told = await remember(service, **fields)
        assert (told["state"], told["value"], told["age_seconds"] >= 10) == ("stale", "old", True)
    again = await remember(service, claim_id=CLAIM)
    assert (again["reservation"]["token"], again["replayed"]) == (taken["reservation"]["token"], True)


async def test_a_caller_that_hangs_up_is_given_nothing(service: Service) -> None:
    taken = await remember(service)
    gone = asyncio.create_task(remember(service, wait_seconds=30))
    stays = asyncio.create_task(remember(service, wait_seconds=30))
    await service.at_desk("cache", 2)
    gone.cancel()
    await fail(service, taken)
    assert (await stays)["state"] == "fill"


async def test_a_namespace_is_cleared_and_others_are_not(service: Service) -> None:
    for number in range(3):
        await put(service, number, f"/v1/cache/plans/{number}")
    await put(service, "stays", "/v1/cache/prices/0")
    cleared = await service.client.delete("/v1/cache/plans")
    assert cleared.json() == {"namespace": "plans", "cleared": 3}
    for number in range(3):
        await service.get(f"/v1/cache/plans/{number}", status=404)
    assert (await service.get("/v1/cache/prices/0", status=200))["value"] == "stays"
    (entry,) = (await service.get("/v1/audit?kind=cache_namespace", status=200))["items"]
    assert (entry["action"], entry["target"], entry["details"]) == ("cache.clear", "plans", {"entries": 3})


async def test_policies(service: Service) -> None:
    path = "/v1/cache-policies/plans"
    await service.get(path, status=404)
    await put(service, "v", "/v1/cache/plans/k")
    (item,) = (await service.get("/v1/cache-policies", status=200))["items"]
    assert (item["namespace"], item["updated_at"], item["entries"], item["bytes"]) == ("plans", None, 1, 3)
    policy = {
        "ttl_seconds": 10, "stale_seconds": 5, "version": "v1", "on_failure": "error", "max_entries": 2, "max_bytes": 100,
    }  # fmt: skip
    told = await service.put(path, policy, status=200)
    assert {name: told[name] for name in policy} == policy
    assert (await service.get(path, status=200)) == told
    await service.get("/v1/cache/plans/k", status=404)
    for key in "abc":
        await service.put(f"/v1/cache/plans/{key}", {"value": key}, status=200)
    assert (await service.get(path, status=200))["entries"] == 2
    assert (await put(service, "x" * 100, status=413))["max_bytes"] == 100
    refused = await put(service, version="v0", status=409)
    assert (refused["code"], refused["version"]) == ("state_conflict", "v1")
    for name in "xyz":
        await service.put(f"/v1/cache-policies/{name}", {}, status=200)
    first = await service.get("/v1/cache-policies?limit=2", status=200)
    rest = await service.get("/v1/cache-policies", params={"limit": 2, "cursor": first["next_cursor"]}, status=200)
    assert [item["namespace"] for item in first["items"] + rest["items"]] == ["plans", "x", "y", "z"]
    assert rest["next_cursor"] is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (ENTRY, {"ttl_seconds": 1}),
        (ENTRY, {"value": 1}),
        (ENTRY, {"value": 1, "ttl_seconds": 0}),
        (ENTRY, {"value": 1, "ttl_seconds": -1}),
        (ENTRY, {"value": 1, "ttl_seconds": 1e12}),
        (ENTRY, {"value": 1, "ttl_seconds": "60"}),
        (ENTRY, {"value": 1, "ttl_seconds": 60, "stale_seconds": -1}),
        (ENTRY, {"value": 1, "ttl_seconds": 60, "version": ""}),
        (ENTRY, {"value": 1, "ttl_seconds": 60, "version": "é"}),
        (ENTRY, {"value": 1, "ttl_seconds": 60, "ttl": 60}),
        ("/v1/cache-policies/p", {"ttl_seconds": 0}),
        ("/v1/cache-policies/p", {"on_failure": "explode"}),
        ("/v1/cache-policies/p", {"max_entries": 0}),
        ("/v1/cache-policies/p", {"max_bytes": 2**53}),
        ("/v1/cache-policies/p", {"max_bytes": 1.5}),
    ],
)
async def test_bad_input_is_told_where_it_is_bad(service: Service, path: str, body: Any) -> None:
    refused = await service.put(path, body, status=422)
    assert refused["code"] == "validation_failed"
    assert refused["errors"][0]["pointer"].startswith("#")
    await service.get(ENTRY, status=404)


@pytest.mark.parametrize(
    "fields", [{"lease_seconds": 0}, {"lease_seconds": 3601}, {"wait_seconds": 31}, {"claim_id": "short"}, {"x": 1}]
)
async def test_bad_calls_fill_nothing(service: Service, fields: Any) -> None:
    await remember(service, status=422, **fields)
    assert (await remember(service))["reservation"]["fence"] == 1


async def test_what_happened_is_in_the_metrics(service: Service) -> None:
    await put(service)
    await service.get(ENTRY, status=200)
    await service.get("/v1/cache/plans/none", status=404)
    text = (await service.client.get("/metrics")).text
    assert 'tenure_cache_lookups_total{found="fresh"} 1.0' in text
    assert 'tenure_cache_lookups_total{found="miss"} 1.0' in text
    assert 'tenure_cache_changes_total{kind="put"} 1.0' in text
    assert "tenure_cache_waiting 0.0" in text
