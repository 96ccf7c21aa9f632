"""HTTP of what contracts decide: policies with their header and metric, payload faults, deaths that are handled.

Every answer here was held against the service's own OpenAPI document as well.
"""

from __future__ import annotations

from typing import Any

import pytest

from app.db.database import Database
from app.primitives.jobs.model.terms import Handler
from app.primitives.jobs.routes.warnings import HEADER, LONGEST
from tests.primitives.jobs.promising import HANDLER, promise
from tests.service import Service, running

pytestmark = pytest.mark.anyio

JOB: dict[str, Any] = {"queue": "q", "type": "t", "payload": {}}


async def test_a_queues_policy_is_set_shown_and_unset(service: Service) -> None:
    assert (await service.put("/v1/queues/q", {}, status=200))["contract_policy"] is None
    assert (await service.put("/v1/queues/q", {"contract_policy": "warn"}, status=200))["contract_policy"] == "warn"
    assert (await service.get("/v1/queues/q", status=200))["contract_policy"] == "warn"
    (listed,) = (await service.get("/v1/queues", status=200))["items"]
    assert listed["contract_policy"] == "warn"
    refused = await service.put("/v1/queues/q", {"contract_policy": "deny"}, status=422)
    assert refused["errors"] == [
        {"pointer": "#/contract_policy", "detail": "must be one of 'allow', 'warn' or 'refuse'"}
    ]
    assert (await service.put("/v1/queues/q", {}, status=200))["contract_policy"] is None


async def test_where_the_policy_refuses_nothing_is_stored(service: Service) -> None:
    await service.put("/v1/queues/q", {"contract_policy": "refuse"}, status=200)
    required = await service.post("/v1/jobs", JOB, status=422)
    assert (required["code"], required["retryable"]) == ("contract_required", False)
    promise(service.runtime.database, violations=("QUEUE003", "QUEUE001"))
    violated = await service.post("/v1/jobs", JOB, status=422)
    assert (violated["code"], violated["rules"]) == ("contract_violated", ["QUEUE003", "QUEUE001"])
    assert (await service.get("/v1/jobs", status=200))["items"] == []
    promise(service.runtime.database)
    response = await service.client.post("/v1/jobs", json=JOB)
    assert (response.status_code, HEADER in response.headers) == (201, False)


async def test_where_the_policy_warns_a_header_and_a_metric_say_so(service: Service) -> None:
    await service.put("/v1/queues/q", {"contract_policy": "warn"}, status=200)
    body = {**JOB, "idempotency_key": "k"}
    required = await service.client.post("/v1/jobs", json=body)
    assert required.status_code == 201
    assert required.headers[HEADER] == 'contract_required; type="t"; schema_version=1; jobs=1'
    again = await service.client.post("/v1/jobs", json=body)
    assert (again.status_code, again.headers[HEADER]) == (200, required.headers[HEADER])
    promise(service.runtime.database, violations=("QUEUE003", "QUEUE001"))
    violated = await service.client.post("/v1/jobs", json=JOB)
    assert violated.headers[HEADER] == (
        'contract_violated; type="t"; schema_version=1; rules="QUEUE003 QUEUE001"; jobs=1'
    )
    metrics = (await service.client.get("/metrics")).text
    for code in ("contract_required", "contract_violated"):
        assert f'tenure_jobs_contract_warnings_total{{code="{code}",queue="q"}} 1.0' in metrics


async def test_the_setting_decides_where_the_queue_does_not(database: Database) -> None:
    async with running(database, contract_policy="refuse") as strict:
        await strict.put("/v1/queues/free", {"contract_policy": "allow"}, status=200)
        assert (await strict.post("/v1/jobs", JOB, status=422))["code"] == "contract_required"
        response = await strict.client.post("/v1/jobs", json={**JOB, "queue": "free"})
        assert (response.status_code, HEADER in response.headers) == (201, False)


async def test_a_batch_has_one_header_that_counts_and_is_bounded(service: Service) -> None:
    await service.put("/v1/queues/q", {"contract_policy": "warn"}, status=200)
    few = await service.client.post(
        "/v1/jobs/batch", json={"jobs": [JOB, {**JOB, "type": "u", "schema_version": 2}, JOB, {**JOB, "queue": "free"}]}
    )
    assert few.headers[HEADER] == (
        'contract_required; type="t"; schema_version=1; jobs=2, contract_required; type="u"; schema_version=2; jobs=1'
    )
    many = await service.client.post(
        "/v1/jobs/batch", json={"jobs": [{**JOB, "type": f"{number:0128}"} for number in range(200)]}
    )
    assert many.status_code == 200
    text = many.headers[HEADER]
    assert len(text) < LONGEST + 30
    entries = text.split(", ")
    assert entries[-1] == f"more; jobs={200 - len(entries) + 1}"


async def test_a_batch_refuses_job_by_job_and_points_into_the_whole_request(service: Service) -> None:
    await service.put("/v1/queues/strict", {"contract_policy": "refuse"}, status=200)
    schema = b'{"properties": {"items": {"items": {"properties": {"qty": {"type": "integer"}}}}}}'
    promise(service.runtime.database, payload_schema=schema)
    bad = {"items": [{"qty": 1}, {"qty": 1}, {"qty": 1}, {"qty": "many-secret"}]}
    jobs = [JOB, {**JOB, "queue": "strict", "type": "u"}, {**JOB, "payload": bad}, {**JOB, "type": "u"}]
    response = await service.client.post("/v1/jobs/batch", json={"jobs": jobs})
    results = response.json()["results"]
    assert [one["status"] for one in results] == [201, 422, 422, 201]
    assert results[1]["problem"]["code"] == "contract_required"
    assert results[2]["problem"]["code"] == "payload_invalid"
    assert results[2]["problem"]["errors"] == [
        {"pointer": "#/jobs/2/payload/items/3/qty", "detail": "must be of type integer"}
    ]
    assert "many-secret" not in response.text
    assert len((await service.get("/v1/jobs", status=200))["items"]) == 2
    alone = await service.post("/v1/jobs", jobs[2], status=422)
    assert alone["errors"] == [{"pointer": "#/payload/items/3/qty", "detail": "must be of type integer"}]


async def test_a_payload_is_judged_by_its_bytes(service: Service) -> None:
    promise(service.runtime.database, payload_schema=b'{"properties": {"n": {"maximum": 12345678901234567890123}}}')
    json = {"content-type": "application/json"}
    for number, status in ((b"12345678901234567890123", 201), (b"12345678901234567890124", 422)):
        body = b'{"queue":"q","type":"t","payload":{"n":' + number + b"}}"
        response = await service.client.post("/v1/jobs", content=body, headers=json)
        assert response.status_code == status, response.text
        assert number.decode() not in response.text


async def test_a_job_without_a_ceiling_is_told_as_null_wherever_it_is_told(service: Service) -> None:
    promise(service.runtime.database, unlimited=True, lease=200)
    made = await service.post("/v1/jobs", JOB, status=201)
    (claimed,) = (await service.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w"}, status=200))["jobs"]
    read = await service.get(f"/v1/jobs/{made['id']}", status=200)
    (listed,) = (await service.get("/v1/jobs", status=200))["items"]
    assert [one["max_attempts"] for one in (made, claimed, read, listed)] == [None] * 4
    assert read["expires_at"] == claimed["reservation"]["expires_at"]


async def test_a_dead_job_names_the_job_that_handles_its_death(service: Service) -> None:
    promise(service.runtime.database, handler=HANDLER)
    made = await service.post("/v1/jobs", {**JOB, "correlation_id": "c"}, status=201)
    (claimed,) = (await service.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w"}, status=200))["jobs"]
    fail = {"token": claimed["reservation"]["token"], "category": "refused", "retry": False}
    await service.post(f"/v1/jobs/{made['id']}/fail", fail, status=200)
    dead = await service.get(f"/v1/jobs/{made['id']}", status=200)
    assert [one["kind"] for one in dead["events"]] == ["enqueued", "claimed", "failed", "dead", "handled"]
    found = await service.get("/v1/jobs", params={"parent_operation_id": made["id"]}, status=200)
    (handler,) = found["items"]
    assert dead["events"][-1]["handler_job_id"] == handler["id"]
    assert {one["handler_job_id"] for one in dead["events"][:-1]} == {None}
    assert (handler["queue"], handler["type"], handler["schema_version"]) == ("graves", "bury", 3)
    assert handler["correlation_id"] == "c"
    (work,) = (await service.post("/v1/jobs/claim", {"queues": ["graves"], "worker": "w"}, status=200))["jobs"]
    assert work["payload"]["job"] == {"id": made["id"], "queue": "q", "type": "t", "schema_version": 1}
    assert work["payload"]["last_error"]["category"] == "refused"


async def test_a_worker_that_settles_and_claims_in_one_call_may_be_given_the_handler(service: Service) -> None:
    """The round is one transaction: the handler's job is made and claimed in it."""
    promise(service.runtime.database, handler=Handler("q", "bury"))
    made = await service.post("/v1/jobs", JOB, status=201)
    claim = {"queues": ["q"], "worker": "w"}
    (claimed,) = (await service.post("/v1/jobs/claim", claim, status=200))["jobs"]
    end = {
        "id": made["id"],
        "token": claimed["reservation"]["token"],
        "outcome": "failed",
        "category": "refused",
        "retry": False,
    }
    answer = await service.post("/v1/jobs/claim", {**claim, "settlements": [end]}, status=200)
    assert answer["settled"][0]["state"] == "dead"
    (next_,) = answer["jobs"] or (await service.post("/v1/jobs/claim", claim, status=200))["jobs"]
    assert (next_["type"], next_["payload"]["job"]["id"]) == ("bury", made["id"])


async def test_the_header_is_documented_where_it_may_come(service: Service) -> None:
    paths = service.app.openapi()["paths"]
    for path, statuses in (("/v1/jobs", ("200", "201")), ("/v1/jobs/batch", ("200",))):
        responses = paths[path]["post"]["responses"]
        for status in statuses:
            assert HEADER in responses[status]["headers"], (path, status)
        assert HEADER not in responses["422"].get("headers", {})
