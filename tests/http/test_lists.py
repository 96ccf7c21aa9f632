"""Lists: limits, cursors, and what becomes of a cursor that was touched."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from app.access import Role
from tests.http.conftest import Service
from tests.http.test_requests import is_problem

pytestmark = pytest.mark.anyio


async def test_pages_follow_each_other_without_gaps_or_repeats(service: Service) -> None:
    client = await service.client(await service.key_of(Role.ADMIN))
    names = [f"k{index}" for index in range(7)]
    for name in names:
        assert (await client.post("/v1/api-keys", json={"name": name, "roles": ["viewer"]})).status_code == 201
    seen: list[str] = []
    cursor = ""
    while True:
        answer = (await client.get(f"/v1/api-keys?limit=3{cursor}")).json()
        seen += [one["name"] for one in answer["items"]]
        if answer["next_cursor"] is None:
            break
        cursor = f"&cursor={answer['next_cursor']}"
    assert seen == [*reversed(names), "test"]


@pytest.mark.parametrize(("limit", "good"), [
    ("1", True), ("500", True), ("0", False), ("501", False), ("abc", False), ("-1", False), ("1.0", False), ("", False),
    ("1_0", False),
    ("%2B5", False), ("9" * 400, False),
])  # fmt: skip
async def test_a_limit_is_1_to_500(service: Service, limit: str, good: bool) -> None:
    answer = await (await service.client()).get(f"/v1/api-keys?limit={limit}")
    if good:
        assert answer.status_code == 200
    else:
        assert is_problem(answer, 422, "validation_failed")["errors"][0]["pointer"] == "?limit"


async def test_a_cursor_is_refused_when_it_was_touched_or_is_another_lists(
    service: Service, start: Callable[..., Any]
) -> None:
    client = await service.client(await service.key_of(Role.ADMIN))
    await client.post("/v1/api-keys", json={"name": "b", "roles": ["viewer"]})
    keys = (await client.get("/v1/api-keys?limit=1")).json()["next_cursor"]
    audit = (await client.get("/v1/audit?limit=1&kind=api_key")).json()["next_cursor"]
    assert (await client.get(f"/v1/audit?kind=api_key&cursor={audit}")).status_code == 200
    for path in (f"/v1/audit?cursor={audit}", f"/v1/audit?kind=queue&cursor={audit}", f"/v1/audit?cursor={keys}"):
        is_problem(await client.get(path), 400, "invalid_cursor")
    raw = base64.urlsafe_b64decode(keys + "=" * (-len(keys) % 4))
    for index in range(len(raw)):
        touched = bytearray(raw)
        touched[index] ^= 1
        text = base64.urlsafe_b64encode(bytes(touched)).rstrip(b"=").decode()
        is_problem(await client.get(f"/v1/api-keys?cursor={text}"), 400, "invalid_cursor")
    for text in ("", "x", "%F0%9F%98%80", keys[:-1], keys + "A", "A" * 200, "null"):
        is_problem(await client.get(f"/v1/api-keys?cursor={text}"), 400, "invalid_cursor")
