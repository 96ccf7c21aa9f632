"""The outbox over HTTP, on every engine: codes, repeats and refusals, each answer held against the OpenAPI document."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest

from tests.service import Service

pytestmark = pytest.mark.anyio

D = "/v1/outbox/destinations/d"
M = "/v1/outbox/messages"
PULL = {"delivery": {"mode": "pull"}}
ID = "0198c5a2-5f00-7c3e-9d6b-0b5f3a8d1e2f"


def message(**fields: Any) -> dict[str, Any]:
    return {"message_key": secrets.token_hex(8), "type": "order.paid", "destination": "d", "payload": {"n": 1}} | fields


async def claim(service: Service, **fields: Any) -> list[dict[str, Any]]:
    body = {"destinations": ["d"], "worker": "w"} | fields
    messages: list[dict[str, Any]] = (await service.post("/v1/outbox/claim", body, status=200))["messages"]
    return messages


async def taken(service: Service, **fields: Any) -> tuple[str, str]:
    """(path, token) of a message that is held."""
    await service.post(M, message(**fields), status=201)
    (one,) = await claim(service)
    return f"{M}/{one['id']}", one["reservation"]["token"]


async def test_a_message_from_its_recording_to_its_sending(service: Service) -> None:
    made = await service.put(D, PULL, status=201)
    assert (made["name"], made["replayed"], made["reconcile"]["mode"]) == ("d", False, "manual")
    body = message(message_key="order-1", ordering_key="o", correlation_id="c", target_reference="r", schema_version=2)
    first = await service.post(M, body, status=201)
    assert (first["state"], first["replayed"], first["attempt"]) == ("pending", False, 0)
    again = await service.post(M, body, status=200)
    assert again == first | {"replayed": True}
    problem = await service.post(M, body | {"payload": {"n": 2}}, status=409)
    assert (problem["code"], problem["retryable"]) == ("idempotency_conflict", False)
    (one,) = await claim(service, wait_seconds=5)
    assert (one["message_key"], one["payload"], one["schema_version"]) == ("order-1", {"n": 1}, 2)
    path, token = f"{M}/{one['id']}", one["reservation"]["token"]
    beat = await service.post(f"{path}/heartbeat", {"token": token, "lease_seconds": 300}, status=200)
    assert beat["expires_at"] > one["reservation"]["expires_at"]
    held = await service.get(path, status=200)
    assert (held["state"], held["worker"]) == ("sending", "w")
    settled = await service.post(f"{path}/sent", {"token": token, "provider_operation_id": "ch_1"}, status=200)
    assert (settled["state"], settled["replayed"]) == ("sent", False)
    assert (await service.post(f"{path}/sent", {"token": token, "provider_operation_id": "ch_1"}, status=200))[
        "replayed"
    ]
    conflict = await service.post(f"{path}/sent", {"token": token}, status=409)
    assert conflict["code"] == "settlement_conflict"
    detail = await service.get(f"{path}?include=payload", status=200)
    assert (detail["payload"], detail["provider_operation_id"]) == ({"n": 1}, "ch_1")
    assert [event["kind"] for event in detail["events"]] == ["recorded", "claimed", "sent"]
    assert token not in json.dumps(detail)
    assert (await service.post(M, body, status=200))["state"] == "sent"


@pytest.mark.parametrize(
    ("how", "fields", "state"),
    [
        ("sent", {}, "sent"),
        ("retry", {"category": "refused", "message": "no route", "retry_after_seconds": 5}, "pending"),
        ("reject", {"category": "declined"}, "dead"),
        ("unknown", {"category": "no_answer", "provider_operation_id": "ch_1"}, "unknown"),
        ("release", {"reason": "shutdown", "delay_seconds": 1}, "pending"),
    ],
)
async def test_each_way_to_settle_has_its_call_and_its_place_in_a_batch(
    service: Service, how: str, fields: dict[str, Any], state: str
) -> None:
    await service.put(D, PULL, status=201)
    path, token = await taken(service)
    single = await service.post(f"{path}/{how}", {"token": token, **fields}, status=200)
    assert single["state"] == state
    assert (single["available_at"] is not None) is (state == "pending")
    outcome = {"sent": "sent", "retry": "retry", "reject": "rejected", "unknown": "unknown", "release": "released"}[how]
    item = {"id": path.rpartition("/")[2], "token": token, "outcome": outcome, **fields}
    other = {"id": ID, "token": token, "outcome": "sent"}
    batch = await service.post("/v1/outbox/settlements", {"items": [item, other]}, status=200)
    assert (batch["results"][0]["status"], batch["results"][0]["replayed"]) == (200, True)
    assert batch["results"][0]["state"] == state
    assert (batch["results"][1]["status"], batch["results"][1]["problem"]["code"]) == (404, "not_found")


async def test_results_of_earlier_work_are_committed_with_a_claim(service: Service) -> None:
    await service.put(D, PULL, status=201)
    for _ in range(2):
        await service.post(M, message(), status=201)
    (one,) = await claim(service)
    item = {"id": one["id"], "token": one["reservation"]["token"], "outcome": "sent"}
    body = {"destinations": ["d"], "worker": "w", "settlements": [item, item | {"token": "x" * 40}]}
    answer = await service.post("/v1/outbox/claim", body, status=200)
    assert [one["status"] for one in answer["settled"]] == [200, 409]
    assert len(answer["messages"]) == 1


async def test_a_batch_records_each_for_itself(service: Service) -> None:
    await service.put(D, PULL, status=201)
    good, used = message(message_key="k"), message(message_key="k", payload=2)
    answer = await service.post(f"{M}/batch", {"messages": [good, used, message(destination="e"), good]}, status=200)
    assert [one["status"] for one in answer["results"]] == [201, 409, 422, 200]
    assert answer["results"][2]["problem"]["errors"][0]["pointer"] == "#/messages/2/destination"
    assert answer["results"][3]["message"]["id"] == answer["results"][0]["message"]["id"]


BAD_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"message_key": ""}, "#/message_key"),
    ({"message_key": "k" * 256}, "#/message_key"),
    ({"message_key": 1}, "#/message_key"),
    ({"type": "a b"}, "#/type"),
    ({"destination": "x" * 129}, "#/destination"),
    ({"destination": "nowhere"}, "#/destination"),
    ({"schema_version": 0}, "#/schema_version"),
    ({"schema_version": 1.5}, "#/schema_version"),
    ({"schema_version": 10**30}, "#/schema_version"),
    ({"occurred_at": "yesterday"}, "#/occurred_at"),
    ({"available_at": "10000-01-01T00:00:00Z"}, "#/available_at"),
    ({"ordering_key": ""}, "#/ordering_key"),
    ({"correlation_id": "a\x00b"}, "#/correlation_id"),
    ({"target_reference": "x" * 256}, "#/target_reference"),
    ({"max_attempts": 0}, "#/max_attempts"),
    ({"max_attempts": True}, "#/max_attempts"),
    ({"orderingKey": "o"}, "#/orderingKey"),
]


async def test_what_makes_no_sense_is_refused_with_a_pointer_and_nothing_is_recorded(service: Service) -> None:
    await service.put(D, PULL, status=201)
    for fields, pointer in BAD_MESSAGES:
        problem = await service.post(M, message(**fields), status=422)
        assert problem["errors"][0]["pointer"] == pointer, fields
    for missing in ("message_key", "type", "destination", "payload"):
        body = message()
        del body[missing]
        await service.post(M, body, status=422)
    big = await service.post(M, message(payload="x" * (256 * 1024)), status=413)
    assert big["code"] == "payload_too_large"
    assert (await service.get(M, status=200))["items"] == []


@pytest.mark.parametrize("key", ["a", "A", "a ", "é", "😀", "\t\n", "\u202e", "%00", "../x"])
async def test_any_text_is_a_key_and_payloads_come_back_byte_for_byte(service: Service, key: str) -> None:
    await service.put(D, PULL, status=201)
    payload = '{"b":1.50,"a":123456789012345678901234567890,"b":[1e2,"\\u00e9é"]}'
    text = json.dumps(message(message_key=key, ordering_key=key) | {"payload": 0})
    head = {"content-type": "application/json"}
    made = await service.client.post(M, content=text.replace('"payload": 0', f'"payload": {payload}'), headers=head)
    assert made.status_code == 201
    answer = await service.client.post("/v1/outbox/claim", json={"destinations": ["d"], "worker": "w"})
    assert f'"payload":{payload}' in answer.text
    assert answer.json()["messages"][0]["message_key"] == key


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"delivery": {"mode": "push"}}, "#/delivery/mode"),
        ({"delivery": {"mode": "http"}}, "#/delivery"),
        ({"delivery": {"mode": "pull", "url": "https://x.org/"}}, "#/delivery"),
        ({"delivery": {"mode": "http", "url": "http://169.254.169.254/"}}, "#/delivery/url"),
        ({"delivery": {"mode": "http", "url": "http://2130706433/"}}, "#/delivery/url"),
        ({"delivery": {"mode": "http", "url": "https://x.org/", "headers": {"host": "y"}}}, "#/delivery"),
        ({"delivery": {"mode": "http", "url": "https://x.org/", "signing_secret": "short"}}, "#/delivery"),
        ({"on_lease_loss": "retry"}, "#"),
        ({"late_ack": "accept"}, "#"),
        ({"max_attempts": 0}, "#/max_attempts"),
        ({"backoff_seconds": []}, "#/backoff_seconds"),
        ({"backoff_seconds": [-1]}, "#/backoff_seconds"),
        ({"retention_seconds": -1}, "#/retention_seconds"),
        ({"reconcile_budget": 0}, "#/reconcile_budget"),
        ({"gate": "g"}, "#/gate"),
    ],
)
async def test_a_destination_that_makes_no_sense_is_refused(service: Service, body: Any, pointer: str) -> None:
    problem = await service.put(D, body, status=422)
    assert problem["errors"][0]["pointer"].startswith(pointer)
    assert "short" not in json.dumps(problem)
    await service.get(D, status=404)


async def test_a_destination_is_set_again_listed_and_keeps_its_messages(service: Service) -> None:
    await service.put(D, PULL, status=201)
    assert (await service.put(D, PULL, status=200))["replayed"]
    body = PULL | {"idempotent": True, "on_lease_loss": "retry", "late_ack": "accept", "max_attempts": 3}
    changed = await service.put(D, body, status=200)
    assert (changed["replayed"], changed["on_lease_loss"]) == (False, "retry")
    for name in ("a", "z"):
        await service.put(f"/v1/outbox/destinations/{name}", PULL, status=201)
    first = await service.get("/v1/outbox/destinations?limit=2", status=200)
    rest = await service.get(f"/v1/outbox/destinations?limit=2&cursor={first['next_cursor']}", status=200)
    assert [one["name"] for one in first["items"] + rest["items"]] == ["a", "d", "z"]
    assert rest["next_cursor"] is None


async def test_ids_that_are_none_and_messages_that_are_not_there(service: Service) -> None:
    await service.get(f"{M}/nonsense", status=404)
    await service.get(f"{M}/{ID}", status=404)
    for how in ("heartbeat", "sent"):
        await service.post(f"{M}/{ID}/{how}", {"token": "x" * 40}, status=404)
    for how in ("confirm", "abort"):
        await service.post(f"{M}/{ID}/{how}", status=404)
    await service.post(f"{M}/{ID}/reconcile", {"verdict": "sent", "evidence": 1}, status=404)
    await service.post(
        f"/v1/outbox/reconciliations/{ID}/verdict", {"token": "x" * 40, "verdict": "sent", "evidence": 1}, status=404
    )


async def test_housekeeping_over_http(service: Service) -> None:
    await service.put(D, PULL, status=201)
    path, token = await taken(service)
    await service.post(f"{path}/reject", {"token": token, "category": "declined"}, status=200)
    assert (await service.post("/v1/outbox/requeue", {"destination": "d"}, status=200))["changed"] == 1
    assert (await claim(service)) != []
    stale = await service.post("/v1/outbox/release-stale", {"claimed_before_seconds": 0}, status=200)
    assert stale == {"changed": 1, "unknown": 1}
    await service.post(f"{path}/reconcile", {"verdict": "dead", "evidence": {"by": "hand"}}, status=200)
    await service.post("/v1/outbox/purge", {"state": "unknown", "older_than_seconds": 0}, status=422)
    assert (await service.post("/v1/outbox/purge", {"state": "dead", "older_than_seconds": 0}, status=200))[
        "changed"
    ] == 1
    await service.get(path, status=404)
    for body in ({"limit": 0}, {"limit": 10_001}, {"state": "dead"}):
        await service.post("/v1/outbox/requeue", body, status=422)


async def test_a_lease_that_has_ended_is_seen_by_who_reads(service: Service) -> None:
    await service.put(D, PULL, status=201)
    path, token = await taken(service)
    service.move(61)
    assert (await service.get(path, status=200))["state"] == "unknown"
    problem = await service.post(f"{path}/sent", {"token": token}, status=409)
    assert (problem["code"], problem["reason"]) == ("reservation_lost", "expired")
    kinds = [event["kind"] for event in (await service.get(path, status=200))["events"]]
    assert kinds == ["recorded", "claimed", "abandoned", "late_answer"]
