"""Locks over HTTP: shapes, statuses, waiting, bad input. Every answer is held against the OpenAPI document."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.service import Service, until

pytestmark = pytest.mark.anyio
CLAIM = "claim-of-my-own-1234"


async def acquire(service: Service, name: str = "l", status: int | None = 200, **fields: Any) -> Any:
    body = {"name": name, "owner": "o", "ttl_seconds": 30} | fields
    return await service.post("/v1/locks/acquire", body, status=status)


async def release(service: Service, held: Any, status: int = 200) -> Any:
    body = {"name": held["name"], "token": held["reservation"]["token"]}
    return await service.post("/v1/locks/release", body, status=status)


async def in_line(service: Service, calls: int) -> None:
    """Return once so many wait for the only lock."""

    async def they_wait() -> bool:
        (lock,) = (await service.get("/v1/locks", status=200))["items"]
        return bool(lock["waiters"] >= calls)

    await until(they_wait)


async def test_the_life_of_a_lock(service: Service) -> None:
    held = await acquire(service, "billing", owner="host-1")
    token = held["reservation"]["token"]
    assert held["name"] == "billing"
    assert held["reservation"]["fence"] == 1
    refused = await acquire(service, "billing", 423)
    assert (refused["code"], refused["owner"]) == ("locked", "host-1")
    assert refused["expires_at"] == held["reservation"]["expires_at"]
    renewed = await service.post("/v1/locks/renew", {"name": "billing", "token": token, "ttl_seconds": 60}, status=200)
    assert renewed["expires_at"] > held["reservation"]["expires_at"]
    verified = await service.post("/v1/locks/verify", {"name": "billing", "fence": 1}, status=200)
    assert verified == {"name": "billing", "current": True, "fence": 1, "held": True}
    (item,) = (await service.get("/v1/locks", status=200))["items"]
    assert (item["name"], item["state"], item["owner"], item["fence"], item["waiters"]) == (
        "billing", "held", "host-1", 1, 0,
    )  # fmt: skip
    assert "token" not in str(item)
    assert await release(service, held) == {"name": "billing", "fence": 1, "replayed": False}
    assert (await release(service, held))["replayed"]
    assert (await service.get("/v1/locks", status=200))["items"] == []
    (item,) = (await service.get("/v1/locks?state=free", status=200))["items"]
    assert (item["state"], item["expires_at"]) == ("free", None)
    lost = await service.post("/v1/locks/renew", {"name": "billing", "token": token}, status=409)
    assert (lost["code"], lost["reason"], lost["current_fence"]) == ("reservation_lost", "settled", 1)


async def test_a_waiting_call_gets_the_lock_as_soon_as_it_is_released(service: Service) -> None:
    held = await acquire(service)
    waiting = [asyncio.create_task(acquire(service, owner=f"w{number}", wait_seconds=30)) for number in range(3)]
    await in_line(service, 3)
    for _ in range(3):
        await release(service, held)
        done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (first,) = done
        waiting, held = list(rest), first.result()
    assert held["reservation"]["fence"] == 4


async def test_a_wait_that_ends_is_told_who_has_the_lock(service: Service) -> None:
    held = await acquire(service, owner="host-1")
    refused = await acquire(service, status=423, wait_seconds=0.05)
    assert (refused["owner"], refused["expires_at"]) == ("host-1", held["reservation"]["expires_at"])
    await release(service, held)
    assert (await acquire(service))["reservation"]["fence"] == 2, "its place is gone with it"


async def test_a_lease_that_ends_passes_the_lock_to_who_waits(service: Service) -> None:
    await acquire(service, ttl_seconds=5)
    waiting = asyncio.create_task(acquire(service, wait_seconds=30))
    await in_line(service, 1)
    service.move(6)
    assert (await waiting)["reservation"]["fence"] == 2


async def test_a_repeated_claim_gives_the_same_token(service: Service) -> None:
    first = await acquire(service, claim_id=CLAIM)
    again = await acquire(service, claim_id=CLAIM)
    assert again["replayed"]
    assert again["reservation"] == first["reservation"]


async def test_a_lock_is_broken_with_a_reason_and_audited(service: Service) -> None:
    held = await acquire(service, owner="host-1")
    await service.post("/v1/locks/break", {"name": "l"}, status=422)
    body = {"name": "l", "reason": "its host burned down", "fence": 1}
    broken = await service.post("/v1/locks/break", body, status=200)
    assert broken == {"name": "l", "broken": True, "fence": 1, "owner": "host-1"}
    assert not (await service.post("/v1/locks/break", body, status=200))["broken"]
    lost = await release(service, held, 409)
    assert (lost["code"], lost["reason"]) == ("reservation_lost", "cancelled")
    (entry,) = (await service.get("/v1/audit?kind=lock", status=200))["items"]
    assert (entry["action"], entry["target"], entry["reason"]) == ("locks.break", "l", "its host burned down")
    await service.post("/v1/locks/break", {"name": "never", "reason": "x"}, status=404)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "x" * 256},
        {"name": "é" * 128},
        {"name": 7},
        {"owner": ""},
        {"owner": "a\x00b"},
        {"ttl_seconds": 0},
        {"ttl_seconds": 0.99},
        {"ttl_seconds": 86_401},
        {"ttl_seconds": "30"},
        {"ttl_seconds": None},
        {"wait_seconds": -1},
        {"wait_seconds": 31},
        {"wait_seconds": 1e300},
        {"claim_id": "short"},
        {"claim_id": "x" * 129},
        {"priority": 1},
    ],
)
async def test_what_does_not_fit_is_refused_and_locks_nothing(service: Service, fields: dict[str, Any]) -> None:
    refused = await acquire(service, status=422, **fields)
    assert refused["code"] == "validation_failed"
    assert (await service.get("/v1/locks"))["items"] == []


async def test_names_of_any_bytes_are_locked_and_listed(service: Service) -> None:
    names = ["a", "A", "a ", "é", "😀", "nul\x00in", "/", "%2F", "\n"]
    for name in names:
        held = await acquire(service, name)
        assert held["name"] == name
    listed = (await service.get("/v1/locks", status=200))["items"]
    assert sorted(item["name"] for item in listed) == sorted(names)


async def test_pages_hold_every_lock_once(service: Service) -> None:
    for number in range(7):
        await acquire(service, f"l{number}", ttl_seconds=10 + number)
    seen: list[str] = []
    page = await service.get("/v1/locks?limit=3", status=200)
    seen += [item["name"] for item in page["items"]]
    while page["next_cursor"]:
        page = await service.get(f"/v1/locks?limit=3&cursor={page['next_cursor']}", status=200)
        seen += [item["name"] for item in page["items"]]
    assert seen == [f"l{number}" for number in reversed(range(7))]
    (one,) = (await service.get("/v1/locks?name=l3", status=200))["items"]
    assert one["name"] == "l3"


async def test_a_key_that_is_limited_to_names_locks_and_sees_only_those(service: Service) -> None:
    made = await service.post("/v1/api-keys", {"name": "admin", "roles": ["admin"]}, status=201)
    admin = {"Authorization": f"Bearer {made['key']}"}
    made = await service.post(
        "/v1/api-keys",
        {"name": "billing", "roles": ["worker", "operator"], "patterns": ["billing.*"]},
        status=201,
        headers=admin,
    )
    limited = {"Authorization": f"Bearer {made['key']}"}
    body = {"name": "other", "owner": "o", "ttl_seconds": 30}
    await service.post("/v1/locks/acquire", body, status=200, headers=admin)
    for path, fields in (
        ("acquire", body),
        ("renew", {"name": "other", "token": "x"}),
        ("release", {"name": "other", "token": "x"}),
        ("verify", {"name": "other", "fence": 1}),
        ("break", {"name": "other", "reason": "r"}),
    ):
        refused = await service.post(f"/v1/locks/{path}", fields, status=403, headers=limited)
        assert refused["code"] == "forbidden"
    await service.post("/v1/locks/acquire", body | {"name": "billing.x"}, status=200, headers=limited)
    listed = (await service.get("/v1/locks", status=200, headers=limited))["items"]
    assert [item["name"] for item in listed] == ["billing.x"]


async def test_metrics_tell_of_locks(service: Service) -> None:
    held = await acquire(service)
    await acquire(service, status=423)
    await release(service, held)
    text = (await service.client.get("/metrics")).text
    assert "tenure_locks_acquired_total 1.0" in text
    assert "tenure_locks_refused_total 1.0" in text
    assert "tenure_locks_released_total 1.0" in text
    assert "tenure_locks_waiting 0.0" in text
