"""Reconciliation over HTTP on every engine: reconcilers that claim, destinations that are asked, and jobs that find out."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from app.db.database import Database
from app.primitives.outbox.delivery.inquiries import Inquiries
from tests.outgoing.peer import Connection, Peer, serving
from tests.primitives.outbox.test_delivery import answering, hang, reset_after_the_request
from tests.service import Service, running, until

pytestmark = pytest.mark.anyio

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
SETTINGS: dict[str, Any] = {
    "delivery_allowed_targets": ["127.0.0.1"],
    "encryption_keys": [base64.b64encode(secrets.token_bytes(32)).decode()],
    "outbox_ask_backoff_seconds": (0.0,),
    "outbox_reconcile_budget": 3,
}


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    async with running(database, **SETTINGS) as one:
        yield one


def saying(text: bytes) -> Any:
    async def act(connection: Connection) -> None:
        await connection.request()
        await connection.answer(200, body=text)

    return act


async def put(service: Service, name: str = "d", **fields: Any) -> None:
    await service.put(f"/v1/outbox/destinations/{name}", {"delivery": {"mode": "pull"}, **fields}, status=201)


async def doubt(service: Service, name: str = "d", **fields: Any) -> str:
    """The id of a message that may have been sent."""
    body = {"message_key": secrets.token_hex(8), "type": "order.paid", "destination": name, "payload": {"n": 1}}
    await service.post("/v1/outbox/messages", body | fields, status=201)
    claim = {"destinations": [name], "worker": "w"}
    (message,) = (await service.post("/v1/outbox/claim", claim, status=200))["messages"]
    told = {"token": message["reservation"]["token"], "category": "no_answer", "provider_operation_id": "ch_7"}
    await service.post(f"/v1/outbox/messages/{message['id']}/unknown", told, status=200)
    return str(message["id"])


async def claim(service: Service, **fields: Any) -> list[dict[str, Any]]:
    body = {"destinations": ["d"], "worker": "reconciler-1"} | fields
    answer = await service.post("/v1/outbox/reconciliations/claim", body, status=200)
    messages: list[dict[str, Any]] = answer["messages"]
    return messages


async def get(service: Service, message_id: str) -> dict[str, Any]:
    found: dict[str, Any] = await service.get(f"/v1/outbox/messages/{message_id}", status=200)
    return found


async def ask(service: Service) -> None:
    """One round of the loop over HTTP, until all its inquiries have ended."""
    await service.sweep("outbox.doubts_due")
    asking: Inquiries = service.runtime.state("outbox.inquiries")
    await asking.ask()

    async def none_under_way() -> bool:
        return not asking.under_way

    await until(none_under_way)


async def test_a_reconciler_claims_over_http_and_gives_the_verdict(service: Service) -> None:
    await put(service)
    message_id = await doubt(service)
    (message,) = await claim(service)
    assert (message["id"], message["state"], message["provider_operation_id"]) == (message_id, "unknown", "ch_7")
    assert (message["payload"], message["asked"], message["reconcile_budget"]) == ({"n": 1}, 1, 3)
    seen = await get(service, message_id)
    assert (seen["reconciliation"]["asked"], seen["reconciliation"]["held_by"]) == (1, "reconciler-1")
    token = message["reservation"]["token"]
    assert token not in json.dumps(seen)
    path = f"/v1/outbox/reconciliations/{message_id}/verdict"
    body = {"token": token, "verdict": "sent", "evidence": {"status": "captured"}, "provider_operation_id": "ch_7"}
    found = await service.post(path, body, status=200)
    assert found == {"id": message_id, "state": "sent", "needs_operator": False, "next_at": None, "replayed": False}
    assert (await service.post(path, body, status=200))["replayed"]
    assert (await service.post(path, body | {"verdict": "dead"}, status=409))["code"] == "settlement_conflict"
    other = await service.post(path, body | {"token": "tnr." + "x" * 60}, status=409)
    assert (other["code"], other["reason"]) == ("reservation_lost", "unknown_token")
    after = await get(service, message_id)
    assert (after["state"], after["reconciliation"]) == ("sent", None)
    (event,) = [one for one in after["events"] if one["kind"] == "reconciled"]
    assert (event["category"], event["evidence"]) == ("sent", {"status": "captured"})


async def test_undecided_ends_with_an_operator_who_sees_it(service: Service) -> None:
    await put(service, reconcile_budget=1)
    message_id = await doubt(service)
    (message,) = await claim(service)
    body = {"token": message["reservation"]["token"], "verdict": "undecided", "evidence": "no answer"}
    found = await service.post(f"/v1/outbox/reconciliations/{message_id}/verdict", body, status=200)
    assert (found["state"], found["needs_operator"]) == ("unknown", True)
    assert (await get(service, message_id))["needs_operator"]
    stats = await service.get("/v1/outbox/stats", status=200)
    assert stats["destinations"][0]["needs_operator"] == 1
    verdict = {"verdict": "dead", "evidence": "asked by telephone"}
    await service.post(f"/v1/outbox/messages/{message_id}/reconcile", verdict, status=200)
    stats = await service.get("/v1/outbox/stats", status=200)
    assert stats["destinations"][0]["needs_operator"] == 0


async def test_a_waiting_reconciler_is_given_what_becomes_unknown(service: Service) -> None:

    await put(service)
    waiting = asyncio.create_task(claim(service, wait_seconds=20))
    message_id = await doubt(service)
    (message,) = await waiting
    assert message["id"] == message_id


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "maybe"},
        {"verdict": None},
        {"token": ""},
        {"unknown": 1},
        {"provider_operation_id": "\x00"},
        {"reason": ""},
    ],
)
async def test_a_verdict_that_makes_no_sense_is_refused_and_changes_nothing(service: Service, change: Any) -> None:
    await put(service)
    message_id = await doubt(service)
    (message,) = await claim(service)
    body = {"token": message["reservation"]["token"], "verdict": "sent", "evidence": 1} | change
    await service.post(f"/v1/outbox/reconciliations/{message_id}/verdict", body, status=422)
    assert (await get(service, message_id))["state"] == "unknown"


@pytest.mark.parametrize(
    ("reconcile", "pointer"),
    [
        ({"mode": "http"}, "#/reconcile"),
        ({"mode": "job", "queue": "q"}, "#/reconcile"),
        ({"mode": "manual", "url": "https://x.org/"}, "#/reconcile"),
        ({"mode": "http", "url": "https://x.org/", "queue": "q"}, "#/reconcile"),
        ({"mode": "http", "url": "http://10.0.0.1/"}, "#/reconcile/url"),
        ({"mode": "http", "url": "file:///etc/passwd"}, "#/reconcile/url"),
        ({"mode": "http", "url": "https://u:p@x.org/"}, "#/reconcile/url"),
        ({"mode": "job", "queue": "not a name", "type": "t"}, "#/reconcile/queue"),
    ],
)
async def test_who_finds_out_is_checked_when_it_is_set(service: Service, reconcile: Any, pointer: str) -> None:
    body = {"delivery": {"mode": "pull"}, "reconcile": reconcile}
    problem = await service.put("/v1/outbox/destinations/d", body, status=422)
    assert problem["errors"][0]["pointer"].startswith(pointer)


# -- a destination that is asked -------------------------------------------------------------------------------------------


async def test_a_destination_is_asked_with_a_signature_and_its_verdict_counts(service: Service) -> None:
    async with serving(saying(b'{"verdict": "sent", "provider_operation_id": "ch_8", "seen": 1.50}')) as peer:
        delivery = {
            "mode": "http",
            "url": peer.url(path="/never"),
            "signing_secret": SECRET,
            "headers": {"x-key": "private"},
        }
        await put(service, "e", delivery=delivery, reconcile={"mode": "http", "url": peer.url(path="/ask?key=hidden")})
        couriers = service.runtime.state("outbox.couriers")
        lost = answering(500)
        async with serving(lost) as flaky:
            body = {
                "delivery": delivery | {"url": flaky.url()},
                "reconcile": {"mode": "http", "url": peer.url(path="/ask?key=hidden")},
            }
            await service.put("/v1/outbox/destinations/e", body, status=200)
            await couriers.refresh()
            message = {"message_key": "k", "type": "order.paid", "destination": "e", "payload": {"n": 1}}
            message_id = (await service.post("/v1/outbox/messages", message, status=201))["id"]

            async def is_unknown() -> bool:
                return bool((await get(service, message_id))["state"] == "unknown")

            await until(is_unknown)
        await ask(service)
        found = await get(service, message_id)
        assert (found["state"], found["provider_operation_id"]) == ("sent", "ch_8")
        (event,) = [one for one in found["events"] if one["kind"] == "reconciled"]
        assert event["evidence"]["answer"]["seen"] == 1.5
        assert "hidden" not in json.dumps(found)
        (request,) = peer.requests
        head, _, text = request.partition(b"\r\n\r\n")
        assert head.startswith(b"POST /ask?key=hidden HTTP/1.1\r\n")
        assert b"private" not in head, "headers of the destination are for its own URL"
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        told = Webhook(SECRET).verify(text.decode(), {name.lower(): value for name, value in fields.items()})
        assert (told["message"]["id"], told["message"]["message_key"], told["asked"]) == (message_id, "k", 1)


async def test_nobody_is_asked_unsigned_where_the_secret_cannot_be_read(database: Database) -> None:
    async with serving(saying(b'{"verdict": "sent"}')) as peer:
        async with running(database, **SETTINGS) as service:
            delivery = {"mode": "http", "url": peer.url(path="/never"), "signing_secret": SECRET}
            await put(service, "e", delivery=delivery, reconcile={"mode": "http", "url": peer.url()})
            await service.put("/v1/outbox/destinations/e", {"reconcile": {"mode": "manual"}}, status=200)
            message_id = await doubt(service, "e")
            await service.put(
                "/v1/outbox/destinations/e", {"reconcile": {"mode": "http", "url": peer.url()}}, status=200
            )
        lost = SETTINGS | {"encryption_keys": [base64.b64encode(secrets.token_bytes(32)).decode()]}
        async with running(database, **lost) as service:
            await ask(service)
            found = await get(service, message_id)
            assert (found["state"], found["reconciliation"]["asked"]) == ("unknown", 0)
            assert peer.connections == 0
        async with running(database, **SETTINGS) as service:
            service.move(60)
            await ask(service)
            assert (await get(service, message_id))["state"] == "sent"
            assert b"webhook-signature" in peer.requests[0].lower()


async def test_destinations_that_hang_lie_and_fail_hold_up_nobody_and_end_with_an_operator(database: Database) -> None:
    bad = [
        answering(500),
        answering(302, "location: http://127.0.0.1/sent"),
        saying(b'{"verdict": "perhaps"}'),
        saying(b"x" * 100_000),
        reset_after_the_request,
        hang,
    ]
    async with running(database, **SETTINGS, outbox_ask_timeout_seconds=0.3) as service, AsyncExitStack() as stack:
        peers: list[Peer] = [await stack.enter_async_context(serving(act)) for act in bad]
        doubtful = []
        for number, peer in enumerate(peers):
            await put(service, f"bad{number}", reconcile={"mode": "http", "url": peer.url()})
            doubtful.append(await doubt(service, f"bad{number}"))
        fine = await stack.enter_async_context(serving(saying(b'{"verdict": "dead"}')))
        await put(service, "fine", reconcile={"mode": "http", "url": fine.url()})
        good = await doubt(service, "fine")
        for _ in range(SETTINGS["outbox_reconcile_budget"]):
            await ask(service)
        assert (await get(service, good))["state"] == "dead"
        for message_id, peer in zip(doubtful, peers, strict=True):
            found = await get(service, message_id)
            assert (found["state"], found["needs_operator"]) == ("unknown", True)
            assert len(peer.requests) == SETTINGS["outbox_reconcile_budget"]
            kinds = [event["kind"] for event in found["events"]]
            assert kinds.count("undecided") == SETTINGS["outbox_reconcile_budget"]
        await ask(service)
        assert {len(peer.requests) for peer in peers} == {SETTINGS["outbox_reconcile_budget"]}


# -- a job that finds out --------------------------------------------------------------------------------------------------

JOB = {"mode": "job", "queue": "reconcile", "type": "order.reconcile"}


async def run_job(service: Service) -> dict[str, Any]:
    (job,) = (await service.post("/v1/jobs/claim", {"queues": ["reconcile"], "worker": "w"}, status=200))["jobs"]
    found: dict[str, Any] = job
    return found


async def settled(service: Service, job: dict[str, Any], how: str, **fields: Any) -> None:
    body = {"token": job["reservation"]["token"], **fields}
    await service.post(f"/v1/jobs/{job['id']}/{how}", body, status=200)


async def test_a_job_finds_out_and_its_result_is_the_verdict(service: Service) -> None:
    await put(service, reconcile=JOB)
    message_id = await doubt(service)
    assert await service.sweep("outbox.inquire_by_job") == 1
    assert await service.sweep("outbox.inquire_by_job") == 0, "one job for one doubt"
    job = await run_job(service)
    assert (job["type"], job["schema_version"], job["correlation_id"]) == ("order.reconcile", 1, message_id)
    assert job["payload"]["message"]["provider_operation_id"] == "ch_7"
    assert (await get(service, message_id))["reconciliation"]["held_by"] == "job"
    service.move(2)
    await service.sweep("outbox.doubts_due")
    assert (await get(service, message_id))["state"] == "unknown", "it runs"
    await settled(service, job, "complete", result={"verdict": "retry", "why": "not found there"})
    service.move(60)
    await service.sweep("outbox.doubts_due")
    found = await get(service, message_id)
    assert (found["state"], found["attempt"]) == ("pending", 0)
    (event,) = [one for one in found["events"] if one["kind"] == "reconciled"]
    assert event["evidence"] == {
        "job_id": job["id"],
        "job_state": "succeeded",
        "answer": {"verdict": "retry", "why": "not found there"},
    }


@pytest.mark.parametrize("end", ["says_nothing", "dies", "is_cancelled"])
async def test_a_job_that_finds_nothing_out_is_followed_by_another_while_the_budget_lasts(
    service: Service, end: str
) -> None:
    await put(service, reconcile=JOB, reconcile_budget=2)
    message_id = await doubt(service)
    for _ in range(2):
        assert await service.sweep("outbox.inquire_by_job") == 1
        if end == "is_cancelled":
            (waiting,) = (await service.get("/v1/jobs?queue=reconcile&state=available", status=200))["items"]
            await service.post(f"/v1/jobs/{waiting['id']}/cancel", {"reason": "not now"}, status=200)
        else:
            job = await run_job(service)
            how = {"says_nothing": "complete", "dies": "fail"}[end]
            told = {"result": {"fine": True}} if how == "complete" else {"category": "broken", "retry": False}
            await settled(service, job, how, **told)
        service.move(120)
        await service.sweep("outbox.doubts_due")
        await service.sweep("outbox.doubts_due")
    assert await service.sweep("outbox.inquire_by_job") == 0
    found = await get(service, message_id)
    assert (found["state"], found["needs_operator"]) == ("unknown", True)


async def test_a_verdict_of_an_operator_stands_against_the_job(service: Service) -> None:
    await put(service, reconcile=JOB)
    message_id = await doubt(service)
    await service.sweep("outbox.inquire_by_job")
    job = await run_job(service)
    verdict = {"verdict": "sent", "evidence": "in the ledger"}
    await service.post(f"/v1/outbox/messages/{message_id}/reconcile", verdict, status=200)
    await settled(service, job, "complete", result={"verdict": "retry"})
    service.move(60)
    await service.sweep("outbox.doubts_due")
    assert (await get(service, message_id))["state"] == "sent"
