"""HTTP of producers and workers: every answer here was held against the service's own OpenAPI document as well."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from app.primitives.jobs.model import new_id
from tests.service import Service

pytestmark = pytest.mark.anyio

SECONDS = 30
CLAIM_ID = "claim-0123456789abcdef"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def enqueued(service: Service, **fields: Any) -> dict[str, Any]:
    job: dict[str, Any] = await service.post(
        "/v1/jobs", {"queue": "q", "type": "t", "payload": {}, **fields}, status=201
    )
    return job


async def claimed(service: Service, **fields: Any) -> list[dict[str, Any]]:
    body = {"queues": ["q"], "worker": "w", **fields}
    jobs: list[dict[str, Any]] = (await service.post("/v1/jobs/claim", body, status=200))["jobs"]
    return jobs


def token(job: dict[str, Any]) -> str:
    text: str = job["reservation"]["token"]
    return text


async def test_a_job_goes_from_enqueue_to_its_end(service: Service) -> None:
    job = await enqueued(service, correlation_id="c", priority=-3)
    assert (job["state"], job["replayed"], job["deduplicated"], job["attempt"]) == ("available", False, False, 0)
    (mine,) = await claimed(service, lease_seconds=30)
    assert (mine["id"], mine["attempt"], mine["correlation_id"], mine["priority"]) == (job["id"], 1, "c", -3)
    beat = await service.post(
        f"/v1/jobs/{job['id']}/heartbeat", {"token": token(mine), "lease_seconds": 90}, status=200
    )
    assert beat["expires_at"] > mine["reservation"]["expires_at"]
    assert (beat["cancel_requested"], beat["release_requested"]) == (False, False)
    end = {"token": token(mine), "result": {"n": 1}}
    done = await service.post(f"/v1/jobs/{job['id']}/complete", end, status=200)
    assert done == {"id": job["id"], "state": "succeeded", "attempt": 1, "available_at": None, "replayed": False}
    again = await service.post(f"/v1/jobs/{job['id']}/complete", end, status=200)
    assert again == {**done, "replayed": True}
    other = await service.post(f"/v1/jobs/{job['id']}/complete", {"token": token(mine)}, status=409)
    assert other["code"] == "settlement_conflict"


RAW = [
    b'{"n":123456789012345678901234567890,"d":1.10,"e":1E40}',
    b'{"b":1,"a":2,"b":3}',
    b'"\\u0000\\ud83d\\ude00"',
    '{"é":"ß😀🎉"}'.encode(),
    b"null",
    b"[]",
    b'"a\\/b"',
    b"-0.0",
]


async def test_payload_and_result_go_through_byte_for_byte(service: Service) -> None:
    json = {"content-type": "application/json"}
    for payload in RAW:
        body = b'{"queue":"q","type":"t","payload":  ' + payload + b"  }"
        made = await service.client.post("/v1/jobs", content=body, headers=json)
        assert made.status_code == 201, made.text
        answer = await service.client.post("/v1/jobs/claim", json={"queues": ["q"], "worker": "w"})
        assert b'"payload":' + payload + b"," in answer.content
        (mine,) = answer.json()["jobs"]
        end = b'{"token":"' + token(mine).encode() + b'","result":' + payload + b"}"
        done = await service.client.post(f"/v1/jobs/{mine['id']}/complete", content=end, headers=json)
        assert done.status_code == 200
        read = await service.client.get(f"/v1/jobs/{mine['id']}?include=payload,result")
        assert b'"payload":' + payload in read.content
        assert b'"result":' + payload in read.content


async def test_an_idempotency_key_replays_or_conflicts(service: Service) -> None:
    body = {"queue": "q", "type": "t", "payload": {"n": 1}, "idempotency_key": "é\0 😀"}
    first = await service.post("/v1/jobs", body, status=201)
    again = await service.post("/v1/jobs", body, status=200)
    assert again == {**first, "replayed": True}
    assert (await service.post("/v1/jobs", {**body, "payload": {"n": 2}}, status=409))["code"] == "idempotency_conflict"
    assert (await service.post("/v1/jobs", {**body, "priority": 1}, status=409))["code"] == "idempotency_conflict"


async def test_a_batch_of_jobs_has_a_result_for_each_in_the_order_sent(service: Service) -> None:
    old = await enqueued(service, idempotency_key="k")
    bodies = [
        {"queue": "q", "type": "t", "payload": 1},
        {"queue": "q", "type": "t", "payload": 2, "idempotency_key": "k"},
        {"queue": "q", "type": "t", "payload": {}, "idempotency_key": "k"},
        {"queue": "b", "type": "t", "payload": 3},
    ]
    results = (await service.post("/v1/jobs/batch", {"jobs": bodies}, status=200))["results"]
    assert [one["status"] for one in results] == [201, 409, 200, 201]
    assert results[1]["problem"]["code"] == "idempotency_conflict"
    assert (results[2]["job"]["id"], results[2]["job"]["replayed"]) == (old["id"], True)
    assert results[3]["job"]["queue"] == "b"


async def test_the_trace_of_the_enqueue_is_handed_to_whoever_claims(service: Service) -> None:
    await service.post(
        "/v1/jobs", {"queue": "q", "type": "t", "payload": 1}, status=201, headers={"traceparent": TRACE}
    )
    assert [job["traceparent"] for job in await claimed(service)] == [TRACE]


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"queue": "q q"}, "#/queue"),
    ({"queue": ""}, "#/queue"),
    ({"type": "x" * 129}, "#/type"),
    ({"schema_version": 0}, "#/schema_version"),
    ({"priority": 1001}, "#/priority"),
    ({"priority": "1"}, "#/priority"),
    ({"priority": True}, "#/priority"),
    ({"delay_seconds": -1}, "#/delay_seconds"),
    ({"max_attempts": 0}, "#/max_attempts"),
    ({"timeout_seconds": 0}, "#/timeout_seconds"),
    ({"available_at": "tomorrow"}, "#/available_at"),
    ({"available_at": "2026-01-01T00:00:00"}, "#/available_at"),
    ({"available_at": "2026-01-01T00:00:00Z", "delay_seconds": 1}, "#"),
    ({"idempotency_key": ""}, "#/idempotency_key"),
    ({"idempotency_key": "é" * 128}, "#/idempotency_key"),
    ({"correlation_id": "\0"}, "#/correlation_id"),
    ({"prioriti": 1}, "#/prioriti"),
]


async def test_a_field_that_does_not_fit_is_pointed_out(service: Service) -> None:
    for fields, pointer in INVALID:
        problem = await service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": 1, **fields}, status=422)
        assert problem["code"] == "validation_failed"
        assert [error["pointer"].rstrip("/") for error in problem["errors"]] == [pointer]


async def test_references_hold_no_character_that_a_database_cannot_keep(service: Service) -> None:
    await enqueued(service)
    (mine,) = await claimed(service)
    body = {"token": token(mine), "category": "x", "retry": False, "reference": "a\0b"}
    await service.post(f"/v1/jobs/{mine['id']}/fail", body, status=422)


async def test_a_payload_that_is_too_large_is_refused_before_the_database(service: Service) -> None:
    served = service.runtime.lane("jobs.enqueue").served
    problem = await service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": "x" * 262_144}, status=413)
    assert problem["code"] == "payload_too_large"
    assert service.runtime.lane("jobs.enqueue").served == served
    await service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": "x" * 262_142}, status=201)


async def test_the_same_claim_again_gives_the_same_grants(service: Service) -> None:
    """camunda#59354 (scenario 4): the answer to a claim is lost."""
    for _ in range(3):
        await enqueued(service)
    body = {"queues": ["q"], "worker": "w", "limit": 2, "claim_id": CLAIM_ID}
    first = await service.post("/v1/jobs/claim", body, status=200)
    again = await service.post("/v1/jobs/claim", body, status=200)
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert again["jobs"] == first["jobs"]
    assert len(first["jobs"]) == 2
    assert len(await claimed(service, claim_id="another-claim-id-000")) == 1


async def test_each_way_to_fail_leads_where_it_says(service: Service) -> None:
    ends: list[tuple[str, dict[str, Any], str]] = [
        ("fail", {"category": "x", "retry": True}, "scheduled"),
        ("fail", {"category": "x", "retry": False, "message": "no é", "reference": "r"}, "dead"),
        ("unknown", {"category": "no_answer"}, "unknown"),
        ("release", {"reason": "shutdown"}, "available"),
        ("release", {"reason": "throttled", "delay_seconds": 5}, "scheduled"),
    ]
    for number, (verb, body, state) in enumerate(ends):
        await enqueued(service, priority=-number)
        (mine,) = await claimed(service)
        answer = await service.post(f"/v1/jobs/{mine['id']}/{verb}", {"token": token(mine), **body}, status=200)
        assert answer["state"] == state
        assert (answer["available_at"] is not None) == (state in ("scheduled", "available"))
        batch = {"items": [{"id": mine["id"], "token": token(mine), "outcome": OUTCOME[verb], **body}]}
        (same,) = (await service.post("/v1/jobs/settlements", batch, status=200))["results"]
        assert same == {"status": 200, "problem": None, **answer, "replayed": True}, (
            "one digest for every way to settle"
        )


OUTCOME = {"fail": "failed", "unknown": "unknown", "release": "released"}


async def test_settlements_and_heartbeats_in_batches_have_mixed_results_in_order(service: Service) -> None:
    for _ in range(3):
        await enqueued(service)
    one, two, three = await claimed(service, limit=3)
    nobody = "0198c5a2-5f00-7c3e-9d6b-0b5f3a8d1e2f"
    beats = [
        {"id": two["id"], "token": token(two), "progress": {"n": 1}},
        {"id": nobody, "token": token(one)},
        {"id": one["id"], "token": token(three)},
    ]
    results = (await service.post("/v1/jobs/heartbeats", {"items": beats}, status=200))["results"]
    assert [(one_["status"], one_["id"]) for one_ in results] == [(200, two["id"]), (404, nobody), (409, one["id"])]
    assert results[2]["problem"]["reason"] == "unknown_token"
    items = [
        {"id": one["id"], "token": token(one), "outcome": "succeeded"},
        {"id": two["id"], "token": token(one), "outcome": "succeeded"},
        {"id": three["id"], "token": token(three), "outcome": "failed", "category": "x", "retry": False},
    ]
    results = (await service.post("/v1/jobs/settlements", {"items": items}, status=200))["results"]
    assert [(one_["status"], one_["state"]) for one_ in results] == [(200, "succeeded"), (409, None), (200, "dead")]


async def test_results_sent_with_a_claim_are_committed_whatever_the_claim_brings(service: Service) -> None:
    await enqueued(service)
    (mine,) = await claimed(service)
    settlement = {"id": mine["id"], "token": token(mine), "outcome": "succeeded", "result": 1}
    body = {"queues": ["q"], "worker": "w", "settlements": [settlement]}
    first = await service.post("/v1/jobs/claim", body, status=200)
    assert (first["jobs"], [one["state"] for one in first["settled"]]) == ([], ["succeeded"])
    again = await service.post("/v1/jobs/claim", body, status=200)
    assert again["settled"] == [{**first["settled"][0], "replayed": True}]


async def test_an_expired_reservation_is_refused_before_and_after_the_sweep(service: Service) -> None:
    await enqueued(service)
    (mine,) = await claimed(service, lease_seconds=10)
    service.move(11)
    for _ in range(2):
        problem = await service.post(f"/v1/jobs/{mine['id']}/complete", {"token": token(mine)}, status=409)
        assert (problem["code"], problem["reason"], problem["current_fence"]) == ("reservation_lost", "expired", 1)
        await service.sweep("jobs.abandon")
    service.move(15)
    assert await service.sweep("jobs.promote") == 1
    (again,) = await claimed(service)
    assert (again["attempt"], again["reservation"]["fence"]) == (2, 2)


async def test_a_waiting_claim_is_answered_when_work_comes(service: Service) -> None:
    waiting = asyncio.create_task(claimed(service, wait_seconds=30))
    await asyncio.sleep(0)
    job = await enqueued(service)
    (mine,) = await asyncio.wait_for(waiting, SECONDS)
    assert mine["id"] == job["id"]


async def test_a_waiting_claim_finds_what_another_process_enqueued(service: Service, replica_of: Any) -> None:
    waiting = asyncio.create_task(
        claimed(service, wait_seconds=30, handlers=[{"type": "other", "schema_versions": [2]}])
    )
    await asyncio.to_thread(replica_of, "q", "other", 2)
    (mine,) = await asyncio.wait_for(waiting, SECONDS)
    assert (mine["type"], mine["schema_version"]) == ("other", 2)


@pytest.fixture
def replica_of(service: Service, migrated_url: str, open_database: Any) -> Any:
    from tests.primitives.jobs.driving import Host, Jobs

    def enqueue(queue: str, type_: str, version: int) -> None:
        process = Jobs(open_database(migrated_url), Host())
        process.enqueue(queue, type_, version)
        process.database.close()

    return enqueue


async def test_a_thousand_idle_claims_cost_one_look_a_tick_and_no_thread(service: Service) -> None:
    peeks, rounds = service.runtime.lane("jobs.peek"), service.runtime.lane("jobs.claim")
    threads = threading.active_count()
    claims = [asyncio.create_task(claimed(service, wait_seconds=30)) for _ in range(1000)]
    async with asyncio.timeout(SECONDS):
        while rounds.served < 1000:
            await peeks.submit(["nothing"])
    served, looked = rounds.served, peeks.batches
    desk, seen = service.runtime.desks["jobs"], asyncio.Event()
    whole = desk.ports.peek
    looks: list[list[Any]] = []

    async def peek(places: list[Any]) -> Any:
        looks.append(places)
        if len(looks) == 3:
            seen.set()
        return await whole(places)

    desk.ports.peek = peek
    await asyncio.wait_for(seen.wait(), SECONDS)
    assert all(places == ["q"] for places in looks)
    assert peeks.batches - looked <= len(looks) + 1
    assert rounds.served == served, "an idle claim costs no round"
    assert threading.active_count() <= threads
    service.runtime.draining.set()
    assert await asyncio.wait_for(asyncio.gather(*claims), SECONDS) == [[]] * 1000


async def test_ids_that_are_none_are_not_found(service: Service) -> None:
    for job_id in ("x", "0198c5a2-5f00-7c3e-9d6b-0b5f3a8d1e2f", new_id().hex):
        for verb, body in (
            ("heartbeat", {}),
            ("complete", {}),
            ("unknown", {"category": "x"}),
            ("release", {"reason": "other"}),
            ("fail", {"category": "x", "retry": True}),
        ):
            problem = await service.post(f"/v1/jobs/{job_id}/{verb}", {"token": "x", **body}, status=404)
            assert problem["code"] == "not_found"


async def test_no_token_is_told_again(service: Service) -> None:
    await enqueued(service)
    (mine,) = await claimed(service, claim_id=CLAIM_ID)
    for path in (f"/v1/jobs/{mine['id']}", "/v1/jobs", f"/v1/jobs/{mine['id']}/explain"):
        text = (await service.client.get(path)).text
        assert token(mine) not in text
        assert CLAIM_ID not in text
