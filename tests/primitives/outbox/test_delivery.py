"""Delivery by the service, on every engine, to real servers that count, hang, reset, lie and answer late."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from standardwebhooks.webhooks import Webhook

from app.clock import MICROS
from app.db.database import Database
from app.primitives.outbox.delivery.breaker import TRIPS_AFTER, Breaker
from app.primitives.outbox.delivery.couriers import Couriers
from app.primitives.outbox.model.destinations import Secrets, SigningSecret
from app.primitives.outbox.tables import outbox_destinations, outbox_messages
from tests.outgoing.peer import Connection, Peer, serving
from tests.primitives.outbox.driving import Host, Outbox
from tests.service import Service, running, until

pytestmark = pytest.mark.anyio

SECONDS = 30
KEY = base64.b64encode(secrets.token_bytes(32)).decode()
SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 32).decode()
SETTINGS: dict[str, Any] = {
    "delivery_allowed_targets": ["127.0.0.1"],
    "encryption_keys": [KEY],
    "delivery_grace_seconds": 0,
}


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    async with running(database, **SETTINGS) as one:
        yield one


async def set_up(service: Service, peer: Peer, name: str = "d", *, path: str = "/hook", **fields: Any) -> None:
    """A destination that this process delivers to from now on."""
    delivery = {"mode": "http", "url": peer.url(path=path), **fields.pop("delivery", {})}
    await service.put(f"/v1/outbox/destinations/{name}", {"delivery": delivery, **fields})
    await refresh(service)


async def refresh(service: Service) -> Couriers:
    couriers: Couriers = service.runtime.state("outbox.couriers")
    await couriers.refresh()
    return couriers


async def record(service: Service, name: str = "d", **fields: Any) -> str:
    body = {
        "message_key": secrets.token_hex(8),
        "type": "order.paid",
        "destination": name,
        "payload": {"n": 1},
    } | fields
    message = await service.post("/v1/outbox/messages", body, status=201)
    return str(message["id"])


async def left(service: Service, message_id: str, *states: str) -> dict[str, Any]:
    """The message, once it is in one of these states and in nobody's hands."""

    async def seen() -> dict[str, Any] | None:
        message: dict[str, Any] = await service.get(f"/v1/outbox/messages/{message_id}", status=200)
        settled = message["state"] in states and (message["state"] != "pending" or message["attempt"] > 0)
        return message if settled else None

    found: dict[str, Any] = await until(seen)
    return found


def answering(status: int, *fields: str) -> Callable[[Connection], Awaitable[None]]:
    async def act(connection: Connection) -> None:
        await connection.request()
        await connection.answer(status, *fields)

    return act


async def reset_after_the_request(connection: Connection) -> None:
    await connection.request()
    connection.reset()


async def hang(connection: Connection) -> None:
    await connection.request()
    await connection.hang()


# -- what a call's end means -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "state", "category", "of_idempotent"),
    [
        (answering(200), "sent", None, "sent"),
        (answering(204), "sent", None, "sent"),
        (answering(404), "dead", "http_404", "dead"),
        (answering(301, "location: /elsewhere"), "dead", "redirected", "dead"),
        (answering(429, "retry-after: 60"), "pending", "throttled", "pending"),
        (answering(408), "pending", "request_timeout", "pending"),
        (answering(503, "retry-after: 60"), "pending", "unavailable", "pending"),
        (answering(503), "unknown", "http_503", "pending"),
        (answering(500), "unknown", "http_500", "pending"),
        (reset_after_the_request, "unknown", "reset", "pending"),
        (hang, "unknown", "timeout", "pending"),
    ],
)
async def test_only_what_was_certainly_not_accepted_is_sent_again(
    service: Service,
    act: Callable[[Connection], Awaitable[None]],
    state: str,
    category: str | None,
    of_idempotent: str,
) -> None:
    """altarwed #609, mailpulse #7 (scenarios 34, 37)."""
    async with serving(act) as peer:
        for name, idempotent, wanted in (("d", False, state), ("i", True, of_idempotent)):
            quick = {"delivery": {"timeout_seconds": 0.5}, "backoff_seconds": [3600], "idempotent": idempotent}
            await set_up(service, peer, name, **quick)
            message = await left(service, await record(service, name), "sent", "dead", "pending", "unknown")
            assert (message["state"], message["category"], message["attempt"]) == (wanted, category, 1)
        assert len(peer.requests) == 2


async def test_a_destination_that_refuses_connections_is_tried_again(service: Service) -> None:
    async with serving(answering(200)) as peer:
        url = peer.url()
    delivery = {"mode": "http", "url": url}
    await service.put("/v1/outbox/destinations/d", {"delivery": delivery, "backoff_seconds": [3600]}, status=201)
    await refresh(service)
    message = await left(service, await record(service), "pending", "unknown", "dead")
    assert (message["state"], message["category"]) == ("pending", "connect")


async def test_what_is_not_allowed_is_never_called(database: Database) -> None:
    async with serving(answering(200)) as peer, running(database) as service:
        refused = await service.put(
            "/v1/outbox/destinations/d", {"delivery": {"mode": "http", "url": peer.url()}}, status=422
        )
        assert refused["errors"][0]["pointer"] == "#/delivery/url"
        named = {"mode": "http", "url": peer.url(host="localhost")}
        await service.put("/v1/outbox/destinations/d", {"delivery": named, "backoff_seconds": [3600]}, status=201)
        await refresh(service)
        message = await left(service, await record(service), "pending", "unknown")
        assert (message["state"], message["category"]) == ("pending", "refused_address")
        assert peer.connections == 0


# -- what is sent ----------------------------------------------------------------------------------------------------------


def taken_apart(request: bytes) -> tuple[dict[str, str], bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    fields = (line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    return {name.lower(): value for name, value in fields}, body


async def test_what_is_sent_is_a_signed_cloud_event_with_the_message_key(service: Service) -> None:
    payload = b'{"b":1.50,"a":"\xc3\xa9"}'
    async with serving(answering(200)) as peer:
        await set_up(service, peer, delivery={"signing_secret": SECRET, "headers": {"Authorization": "Bearer of-ours"}})
        body = (
            b'{"message_key":"k 1","type":"order.paid","destination":"d","ordering_key":"o","correlation_id":"c",'
            b'"target_reference":"orders/1","schema_version":3,"occurred_at":"2026-01-31T08:30:00Z","payload":'
            + payload
            + b"}"
        )
        answer = await service.client.post(
            "/v1/outbox/messages", content=body, headers={"content-type": "application/json"}
        )
        message = await left(service, answer.json()["id"], "sent")
        headers, sent = taken_apart(peer.requests[0])
    assert sent == payload
    assert Webhook(SECRET).verify(sent, headers) == json.loads(payload)
    event = from_http_event(HTTPMessage(headers, sent))
    assert (event.get_id(), event.get_type(), event.get_subject()) == (message["id"], "order.paid", "orders/1")
    assert event.get_extension("messagekey") == "k 1"
    assert (event.get_extension("partitionkey"), event.get_extension("correlationid")) == ("o", "c")
    assert (headers["idempotency-key"], headers["authorization"]) == ("k%201", "Bearer of-ours")


async def test_a_secret_that_is_replaced_signs_on_for_a_while(service: Service) -> None:
    async with serving(answering(200)) as peer:
        await set_up(service, peer, delivery={"signing_secret": SECRET})
        await set_up(service, peer, delivery={"signing_secret": OTHER, "signing_secret_overlap_seconds": 60})
        await left(service, await record(service), "sent")
        service.move(61)
        await left(service, await record(service), "sent")
        both, one = (taken_apart(request)[0]["webhook-signature"] for request in peer.requests)
    assert (len(both.split(" ")), len(one.split(" "))) == (2, 1)


async def test_every_attempt_is_the_same_event(service: Service) -> None:
    statuses = iter([429, 200])

    async def act(connection: Connection) -> None:
        await connection.request()
        await connection.answer(next(statuses))

    async with serving(act) as peer:
        await set_up(service, peer, backoff_seconds=[1])
        message_id = await record(service)
        await left(service, message_id, "pending")
        service.move(2)
        await service.sweep("outbox.promote")
        await left(service, message_id, "sent")
        first, second = (taken_apart(request) for request in peer.requests)
    assert (first[0]["ce-id"], first[0]["idempotency-key"], first[1]) == (
        second[0]["ce-id"],
        second[0]["idempotency-key"],
        second[1],
    )


# -- secrets ---------------------------------------------------------------------------------------------------------------


async def test_secrets_are_neither_shown_nor_stored_in_the_clear(service: Service, database: Database) -> None:
    async with serving(answering(200)) as peer:
        delivery = {
            "mode": "http",
            "url": peer.url(),
            "signing_secret": SECRET,
            "headers": {"Authorization": "Bearer hush"},
        }
        told = await service.put("/v1/outbox/destinations/d", {"delivery": delivery}, status=201)
        again = await service.put("/v1/outbox/destinations/d", {"delivery": delivery}, status=200)
        kept = await service.put(
            "/v1/outbox/destinations/d", {"delivery": {**delivery, "signing_secret": None}}, status=200
        )
        read = await service.get("/v1/outbox/destinations/d", status=200)
        listed = await service.get("/v1/outbox/destinations", status=200)
        audited = await service.get("/v1/audit", status=200)
    assert (told["delivery"]["signed"], told["delivery"]["header_names"]) == (True, ["authorization"])
    assert (again["replayed"], kept["replayed"]) == (True, True)
    (row,) = Outbox(database, Host()).rows(outbox_destinations)
    for text in (json.dumps([told, again, read, listed, audited]), str(tuple(row))):
        assert "hush" not in text
        assert SECRET.removeprefix("whsec_") not in text


async def test_a_secret_needs_an_encryption_key(database: Database) -> None:
    async with running(database) as service:
        for field, value in (("signing_secret", SECRET), ("headers", {"authorization": "x"})):
            delivery = {"mode": "http", "url": "https://example.org/hook", field: value}
            refused = await service.put("/v1/outbox/destinations/d", {"delivery": delivery}, status=422)
            assert refused["errors"][0]["pointer"] == f"#/delivery/{field}"
            assert "TENURE_ENCRYPTION_KEYS" in refused["detail"]
            await service.get("/v1/outbox/destinations/d", status=404)


async def test_a_destination_whose_secrets_cannot_be_opened_is_not_delivered_to(database: Database) -> None:
    async with serving(answering(200)) as peer:
        async with running(database, **SETTINGS) as service:
            await set_up(service, peer, delivery={"signing_secret": SECRET})
        other = SETTINGS | {"encryption_keys": [base64.b64encode(b"x" * 32).decode()]}
        async with running(database, **other) as service:
            couriers = await refresh(service)
            assert (list(couriers.by_name), list(couriers.unreadable)) == ([], ["d"])
            await record(service)
            delivery = {"mode": "http", "url": peer.url()}
            await service.put("/v1/outbox/destinations/d", {"delivery": delivery}, status=409)
            await set_up(service, peer, delivery={"signing_secret": OTHER})
            await until(lambda: _arrived(peer))


async def _arrived(peer: Peer) -> bool:
    return bool(peer.requests)


# -- many at once ----------------------------------------------------------------------------------------------------------


async def test_a_destination_that_hangs_does_not_hold_up_another(service: Service) -> None:
    """gruelbox #788, CAP #1273 (scenario 32)."""
    async with serving(hang) as slow, serving(answering(200)) as quick:
        await set_up(service, slow, "slow", delivery={"timeout_seconds": 300, "max_in_flight": 2})
        await set_up(service, quick, "quick")
        for _ in range(5):
            await record(service, "slow")
        await asyncio.wait_for(slow.arrived.wait(), SECONDS)
        for message_id in [await record(service, "quick") for _ in range(5)]:
            await left(service, message_id, "sent")
        stats = await service.get("/v1/outbox/stats", status=200)
        counts = {one["destination"]: one["counts"] for one in stats["destinations"]}
        assert (counts["slow"]["sending"], counts["slow"]["pending"]) == (2, 3), "no more than may be under way"


@pytest.mark.engines("mariadb", "mysql", "postgresql")  # the embedded database is one process's own
async def test_two_processes_deliver_each_message_once(
    service: Service, migrated_url: str, open_database: Callable[[str], Database]
) -> None:
    async with serving(answering(200)) as peer:
        await set_up(service, peer)
        async with running(open_database(migrated_url), **SETTINGS) as other:
            await refresh(other)
            ids = [await record(one) for _ in range(20) for one in (service, other)]
            for message_id in ids:
                await left(service, message_id, "sent")
        seen = [taken_apart(request)[0]["ce-id"] for request in peer.requests]
    assert sorted(seen) == sorted(ids)


async def test_messages_of_one_key_arrive_in_order_also_through_retries(service: Service) -> None:
    statuses = iter([429, 200, 200, 200])

    async def act(connection: Connection) -> None:
        await connection.request()
        await connection.answer(next(statuses))

    async with serving(act) as peer:
        await set_up(service, peer, backoff_seconds=[1])
        ids = [await record(service, ordering_key="o") for _ in range(3)]
        await left(service, ids[0], "pending")
        service.move(2)
        await service.sweep("outbox.promote")
        for message_id in ids:
            await left(service, message_id, "sent")
        seen = [taken_apart(request)[0]["ce-id"] for request in peer.requests]
    assert seen == [ids[0], *ids]


async def test_a_destination_that_fails_again_and_again_is_left_alone(service: Service) -> None:
    async with serving(answering(429)) as peer:
        await set_up(service, peer, backoff_seconds=[3600], delivery={"max_in_flight": 1})
        for _ in range(TRIPS_AFTER + 3):
            await record(service)
        couriers = await refresh(service)

        async def tripped() -> bool:
            return couriers.by_name["d"].breaker.tripped

        await until(tripped)
        assert len(peer.requests) == TRIPS_AFTER
        stats = (await service.get("/v1/outbox/stats", status=200))["totals"]
        assert stats["pending"] == TRIPS_AFTER + 3, "what was not tried has spent no attempt"


def test_a_breaker_waits_longer_each_time_and_closes_with_the_first_answer() -> None:
    breaker, now = Breaker(), 100.0
    for _ in range(TRIPS_AFTER - 1):
        breaker.failed(now)
    assert breaker.open_for(now) == 0
    pauses = []
    for _ in range(10):
        breaker.failed(now)
        pauses.append(breaker.open_for(now))
        now += pauses[-1]
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300, 300]
    breaker.succeeded()
    assert (breaker.open_for(now), breaker.tripped) == (0, False)
    breaker.asked_to_wait(now, 30)
    assert breaker.open_for(now) == 30


async def test_a_destination_that_is_set_to_pull_is_delivered_to_no_more(service: Service) -> None:
    async with serving(answering(200)) as peer:
        await set_up(service, peer)
        claim = {"destinations": ["d"], "worker": "w"}
        await service.post("/v1/outbox/claim", claim, status=409)
        await service.put("/v1/outbox/destinations/d", {}, status=200)
        couriers = await refresh(service)
        assert not couriers.by_name
        message_id = await record(service)
        (mine,) = (await service.post("/v1/outbox/claim", claim, status=200))["messages"]
        assert (mine["id"], len(peer.requests)) == (message_id, 0)


# -- the end of the service ------------------------------------------------------------------------------------------------


async def test_a_call_that_is_cut_short_by_the_end_of_the_service_is_unknown(database: Database) -> None:
    async with serving(hang) as peer:
        async with running(database, **SETTINGS) as service:
            await set_up(service, peer, delivery={"timeout_seconds": 300})
            await record(service)
            await asyncio.wait_for(peer.arrived.wait(), SECONDS)
        (row,) = Outbox(database, Host()).rows(outbox_messages)
    assert (row.state, row.category) == (7, "cancelled")


async def test_what_was_certainly_not_sent_comes_back_without_cost(database: Database) -> None:
    async def never_accepts_tls(connection: Connection) -> None:
        await connection.hang()

    async with serving(never_accepts_tls) as peer:
        async with running(database, **SETTINGS) as service:
            await set_up(service, peer, delivery={"url": f"https://127.0.0.1:{peer.port}/", "timeout_seconds": 300})
            await record(service)

            async def connected() -> bool:
                return peer.connections > 0

            await until(connected)
        (row,) = Outbox(database, Host()).rows(outbox_messages)
    assert (row.state, row.attempt, row.releases) == (0, 0, 1)


def test_secrets_follow_each_other() -> None:
    first = Secrets().changed({}, "a", 10 * MICROS, 0)
    assert first.signing_at(0) == ("a",)
    second = first.changed({"x": "y"}, "b", 10 * MICROS, 0)
    assert (second.headers, second.signing_at(0), second.signing_at(10 * MICROS)) == ({"x": "y"}, ("b", "a"), ("b",))
    assert second.changed({}, None, 10 * MICROS, 0).signing_at(0) == ("b", "a")
    assert second.changed({}, None, 0, 0).signing_at(0) == ("b",)
    assert second.changed({}, "b", 10 * MICROS, 0) == Secrets({}, second.signing)
    assert Secrets(signing=(SigningSecret("z", 5),)).changed({}, "n", 1, 9).signing == (SigningSecret("n"),)
