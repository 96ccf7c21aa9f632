"""Prepared messages over HTTP, and the service's questions to real producers that lie, hang and are away. On every engine."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from app.db.database import Database
from app.primitives.outbox.delivery.checks import Checks
from tests.outgoing.peer import Connection, Peer, serving
from tests.primitives.outbox.test_delivery import answering, hang, reset_after_the_request
from tests.service import Service, running, until

pytestmark = pytest.mark.anyio

SETTINGS: dict[str, Any] = {
    "delivery_allowed_targets": ["127.0.0.1"],
    "outbox_ask_backoff_seconds": (0.0,),
    "outbox_check_budget": 3,
}


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    async with running(database, **SETTINGS) as one:
        await one.put("/v1/outbox/destinations/d", {"delivery": {"mode": "pull"}}, status=201)
        yield one


def saying(text: bytes) -> Any:
    async def act(connection: Connection) -> None:
        await connection.request()
        await connection.answer(200, body=text)

    return act


async def prepare(service: Service, url: str | None, **fields: Any) -> dict[str, Any]:
    body = {
        "message_key": secrets.token_hex(8),
        "type": "order.paid",
        "destination": "d",
        "payload": {"n": 1},
        "prepare": {"decide_within_seconds": 60} | ({} if url is None else {"check_url": url}),
    } | fields
    message: dict[str, Any] = await service.post("/v1/outbox/messages", body, status=201)
    return message


async def get(service: Service, message: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = await service.get(f"/v1/outbox/messages/{message['id']}", status=200)
    return found


async def ask(service: Service) -> None:
    """One round of the loop, until all its questions have ended."""
    asking: Checks = service.runtime.state("outbox.checks")
    await asking.ask()
    await ended(asking)


async def ended(asking: Checks) -> None:
    async def none_under_way() -> bool:
        return not asking.under_way

    await until(none_under_way)


async def test_a_producer_confirms_and_aborts_over_http(service: Service) -> None:
    message, other = await prepare(service, None), await prepare(service, None)
    assert message["state"] == "prepared"
    assert message["decide_at"] > message["created_at"]
    stats = await service.get("/v1/outbox/stats", status=200)
    assert stats["totals"]["prepared"] == 2
    listed = await service.get("/v1/outbox/messages?state=prepared", status=200)
    assert {one["id"]: one["decide_at"] for one in listed["items"]} == {
        one["id"]: one["decide_at"] for one in (message, other)
    }
    path = f"/v1/outbox/messages/{message['id']}"
    confirmed = await service.post(f"{path}/confirm", status=200)
    assert (confirmed["state"], confirmed["replayed"], confirmed["decide_at"]) == ("pending", False, None)
    assert (await service.post(f"{path}/confirm", status=200))["replayed"]
    problem = await service.post(f"{path}/abort", status=409)
    assert (problem["code"], problem["decision"]) == ("state_conflict", "confirmed")
    aborted = await service.post(f"/v1/outbox/messages/{other['id']}/abort", status=200)
    assert aborted["state"] == "aborted"
    assert [event["kind"] for event in (await get(service, other))["events"]] == ["recorded", "aborted"]
    (claimed,) = (await service.post("/v1/outbox/claim", {"destinations": ["d"], "worker": "w"}, status=200))[
        "messages"
    ]
    assert claimed["id"] == message["id"]


async def test_a_batch_holds_prepared_messages_and_refuses_each_for_itself(service: Service) -> None:
    good = {"message_key": "a", "type": "t", "destination": "d", "payload": 1, "prepare": {"decide_within_seconds": 5}}
    private = {**good, "message_key": "b", "prepare": {"decide_within_seconds": 5, "check_url": "http://10.1.2.3/c"}}
    plain = {"message_key": "c", "type": "t", "destination": "d", "payload": 1}
    answer = await service.post("/v1/outbox/messages/batch", {"messages": [good, private, plain]}, status=200)
    first, second, third = answer["results"]
    assert (first["message"]["state"], third["message"]["state"]) == ("prepared", "pending")
    assert second["status"] == 422
    assert second["problem"]["errors"][0]["pointer"] == "#/messages/1/prepare/check_url"


@pytest.mark.parametrize(
    "prepare",
    [
        {},
        {"decide_within_seconds": 0},
        {"decide_within_seconds": -1},
        {"decide_within_seconds": 1e300},
        {"decide_within_seconds": "60"},
        {"decide_within_seconds": 60, "check_url": "ftp://x.org/"},
        {"decide_within_seconds": 60, "check_url": "http://user:secret@x.org/"},
        {"decide_within_seconds": 60, "check_url": "http://10.0.0.1/"},
        {"decide_within_seconds": 60, "check_url": "http://x.org/\x00"},
        {"decide_within_seconds": 60, "unknown": 1},
        "yes",
    ],
)
async def test_terms_that_make_no_sense_are_refused(service: Service, prepare: Any) -> None:
    body = {"message_key": "k", "type": "t", "destination": "d", "payload": 1, "prepare": prepare}
    problem = await service.post("/v1/outbox/messages", body, status=422)
    assert problem["errors"][0]["pointer"].startswith("#/prepare")
    assert (await service.get("/v1/outbox/messages", status=200))["items"] == []


async def test_a_silent_producer_is_asked_and_its_answer_counts(service: Service) -> None:
    async with serving(saying(b'{"decision": "committed"}')) as yes, serving(saying(b"rolled_back")) as no:
        committed = await prepare(service, yes.url(path="/check?order=1"))
        rolled_back = await prepare(service, no.url())
        await ask(service)
        assert (yes.requests, no.requests) == ([], []), "its time has not passed"
        service.move(61)
        await ask(service)
        assert (await get(service, committed))["state"] == "pending"
        assert (await get(service, rolled_back))["state"] == "aborted"
        (request,) = yes.requests
        head = request.decode().lower()
        assert head.startswith("get /check?order=1 http/1.1\r\n")
        assert f"tenure-message-id: {committed['id']}" in head
        assert f"tenure-message-key: {committed['message_key']}" in head


async def test_bad_answers_and_hanging_producers_stop_nobody_and_end_with_an_operator(database: Database) -> None:
    """rocketmq#8311: one error stopped the whole round."""
    bad = [
        answering(500),
        answering(404),
        answering(302, "location: http://127.0.0.1/committed"),
        saying(b"perhaps"),
        saying(b"x" * 100_000),
        reset_after_the_request,
        hang,
    ]
    async with running(database, **SETTINGS, outbox_ask_timeout_seconds=0.3) as service, AsyncExitStack() as stack:
        await service.put("/v1/outbox/destinations/d", {"delivery": {"mode": "pull"}}, status=201)
        peers: list[Peer] = [await stack.enter_async_context(serving(act)) for act in bad]
        doubtful = [await prepare(service, peer.url()) for peer in peers]
        fine_peer = await stack.enter_async_context(serving(saying(b"committed")))
        fine = await prepare(service, fine_peer.url())
        service.move(61)
        for _ in range(SETTINGS["outbox_check_budget"]):
            await ask(service)
        assert (await get(service, fine))["state"] == "pending"
        for message, peer in zip(doubtful, peers, strict=True):
            found = await get(service, message)
            assert (found["state"], found["needs_operator"]) == ("prepared", True)
            assert found["check"]["asked"] == len(peer.requests) == SETTINGS["outbox_check_budget"]
            assert found["check"]["answer"]
            assert found["check"]["next_at"] is None
        await ask(service)
        assert {len(peer.requests) for peer in peers} == {SETTINGS["outbox_check_budget"]}
        told = {one["name"]: one for one in (await service.get("/health"))["checks"]}
        assert told["outbox.d.needs_operator"]["value"] == len(bad)


async def test_an_address_that_may_not_be_called_is_not_called_and_spends_nothing(database: Database) -> None:
    async with serving(saying(b"committed")) as peer:
        async with running(database, **SETTINGS) as service:
            await service.put("/v1/outbox/destinations/d", {"delivery": {"mode": "pull"}}, status=201)
            message = await prepare(service, peer.url())
        async with running(database, **SETTINGS | {"delivery_allowed_targets": []}) as service:
            service.move(61)
            await ask(service)
            found = await get(service, message)
            assert (found["state"], found["check"]["asked"]) == ("prepared", 0)
            assert "may not be called" in found["check"]["answer"]
        assert peer.connections == 0


async def test_stopping_drops_questions_and_another_process_asks_again(database: Database) -> None:
    settings = SETTINGS | {"outbox_ask_timeout_seconds": 5}
    async with serving(hang) as peer:
        async with running(database, **settings) as service:
            await service.put("/v1/outbox/destinations/d", {"delivery": {"mode": "pull"}}, status=201)
            message = await prepare(service, peer.url())
            service.move(61)
            asking: Checks = service.runtime.state("outbox.checks")
            assert await asking.ask() == 1
            await peer.arrived.wait()
            assert await asking.ask() == 0, "one asks at a time"
        assert not asking.under_way
    async with serving(saying(b"committed"), port=peer.port), running(database, **settings) as service:
        service.move(61 + 36)
        await ask(service)
        assert (await get(service, message))["state"] == "pending"
