"""Delivery by real processes that are killed: what may have been sent is never sent again by itself."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import NullPool, create_engine, make_url, update

from app.primitives.outbox.model.states import State
from app.primitives.outbox.tables import outbox_messages, outbox_reconciliations
from tests.e2e.process import ServiceProcess, eventually
from tests.e2e.provider import Provider
from tests.servers import Server

SETTINGS = {"delivery_allowed_targets": "127.0.0.1", "delivery_grace_seconds": 5}
Start = Callable[..., ServiceProcess]


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as one:
        yield one


def set_up(service: ServiceProcess, provider: Provider, **fields: Any) -> None:
    delivery = {"mode": "http", "url": provider.url, "timeout_seconds": 60}
    service.put("/v1/outbox/destinations/d", {"delivery": delivery, **fields}, 200, 201)


def record(service: ServiceProcess, key: str) -> str:
    message = {"message_key": key, "type": "charge", "destination": "d", "payload": {"amount": 1}}
    return str(service.post("/v1/outbox/messages", message, 201)["id"])


def end_leases(url: str) -> None:
    """As if the time of every lease had passed."""
    engine = create_engine(make_url(url), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(
            update(outbox_messages).where(outbox_messages.c.state == int(State.SENDING)).values(due_at=1)
        )
    engine.dispose()


def totals(service: ServiceProcess) -> dict[str, int]:
    return {name: count for name, count in service.get("/v1/outbox/stats")["totals"].items() if count}


def test_kill_9_between_the_send_and_its_mark_leaves_unknown_and_never_a_second_send(
    migrated_url: str, start_service: Start, provider: Provider
) -> None:
    """Fault 31."""
    service = start_service(migrated_url, **SETTINGS)
    set_up(service, provider)
    provider.hold()
    ids = [record(service, f"charge-{number}") for number in range(3)]
    provider.wait_for(3)
    service.kill()
    provider.released.set()
    end_leases(migrated_url)
    service.start()
    eventually(lambda: totals(service) == {"unknown": 3}, what="all three unknown")
    record(service, "another")
    eventually(lambda: totals(service) == {"unknown": 3, "sent": 1}, what="the service delivers again")
    assert set(provider.received.values()) == {1}
    assert service.get(f"/v1/outbox/messages/{ids[0]}")["category"] == "abandoned"
    verdict = {"verdict": "sent", "evidence": {"seen": "in the provider's list"}}
    service.post(f"/v1/outbox/messages/{ids[0]}/reconcile", verdict, 200)
    assert totals(service) == {"unknown": 2, "sent": 2}


def test_an_idempotent_destination_is_sent_again_what_a_killed_process_had_in_hand(
    migrated_url: str, start_service: Start, provider: Provider
) -> None:
    service = start_service(migrated_url, **SETTINGS)
    set_up(service, provider, idempotent=True, on_lease_loss="retry", backoff_seconds=[0])
    provider.hold()
    record(service, "charge-1")
    provider.wait_for(1)
    service.kill()
    provider.released.set()
    end_leases(migrated_url)
    service.start()
    eventually(lambda: totals(service) == {"sent": 1}, what="sent again")
    assert provider.received == {"charge-1": 2}


def test_sigterm_waits_for_calls_that_are_under_way(
    migrated_url: str, start_service: Start, provider: Provider
) -> None:
    service = start_service(migrated_url, **SETTINGS)
    set_up(service, provider)
    provider.hold()
    record(service, "charge-1")
    provider.wait_for(1)
    threading.Timer(0.5, provider.released.set).start()
    assert service.terminate() == 0
    service.start()
    assert totals(service) == {"sent": 1}


def test_replicas_that_are_killed_at_random_never_send_twice(
    migrated_url: str, start_service: Start, provider: Provider
) -> None:
    """Whatever the moment of the kill: each message is sent, or unknown, or still to be sent; none was sent twice."""
    embedded = migrated_url.startswith("sqlite")
    replicas = [start_service(migrated_url, **SETTINGS) for _ in range(1 if embedded else 2)]
    set_up(replicas[0], provider, backoff_seconds=[0])
    for number in range(40):
        record(replicas[0], f"charge-{number}")
        if number % 20 == 10:
            victim = random.choice(replicas)
            victim.kill()
            end_leases(migrated_url)
            victim.start()
    eventually(lambda: not set(totals(replicas[0])) - {"sent", "unknown"}, 60, "all is sent or unknown")
    counts = totals(replicas[0])
    assert sum(counts.values()) == 40
    assert set(provider.received.values()) == {1}, provider.received.most_common(3)
    assert counts["sent"] <= len(provider.received)


def test_a_database_that_is_killed_under_deliveries_loses_none_and_doubles_none(
    faulty_server: Server, migrated_url: str, start_service: Start, provider: Provider
) -> None:
    """Fault 5 for messages: what was recorded is there; what the provider has is `sent`, or `unknown` if nobody could note it."""
    service = start_service(migrated_url, **SETTINGS)
    set_up(service, provider, backoff_seconds=[0])
    acknowledged = [record(service, f"charge-{number}") for number in range(15)]
    eventually(lambda: totals(service) == {"sent": 15}, what="the first are sent")
    provider.hold()
    acknowledged += [record(service, f"late-{number}") for number in range(5)]
    eventually(lambda: any(key.startswith("late") for key in provider.received), what="calls under way")
    faulty_server.kill()
    provider.released.set()  # the answers come while there is nobody to tell
    faulty_server.start()
    with service.client() as client:
        eventually(lambda: _all_told(client), 60, "all is told")
    assert sum(totals(service).values()) == len(acknowledged)
    assert set(provider.received.values()) == {1}, provider.received.most_common(3)
    assert totals(service)["sent"] <= len(provider.received)


def _all_told(client: httpx.Client) -> bool:
    """Whether no message is on its way any more; not while the database is away."""
    answer = client.get("/v1/outbox/stats")
    if answer.status_code != 200:
        return False
    return {name for name, count in answer.json()["totals"].items() if count} <= {"sent", "unknown"}


def test_a_process_that_is_killed_while_it_asks_is_followed_by_another(
    migrated_url: str, start_service: Start, provider: Provider
) -> None:
    """A prepared message whose producer was being asked, and an unknown one whose destination was: neither is forgotten."""
    service = start_service(migrated_url, **SETTINGS, outbox_ask_timeout_seconds=60)
    reconcile = {"mode": "http", "url": provider.url}
    service.put("/v1/outbox/destinations/pulled", {"delivery": {"mode": "pull"}, "reconcile": reconcile}, 201)
    doubtful = {"message_key": "doubtful", "type": "t", "destination": "pulled", "payload": 1}
    service.post("/v1/outbox/messages", doubtful, 201)
    (held,) = service.post("/v1/outbox/claim", {"destinations": ["pulled"], "worker": "w"}, 200)["messages"]
    provider.hold()
    told = {"token": held["reservation"]["token"], "category": "no_answer"}
    service.post(f"/v1/outbox/messages/{held['id']}/unknown", told, 200)
    prepare = {"decide_within_seconds": 0.1, "check_url": provider.url}
    prepared = service.post("/v1/outbox/messages", doubtful | {"message_key": "prepared", "prepare": prepare}, 201)
    provider.wait_for(2)
    service.kill()
    provider.answer = b'{"verdict": "sent", "decision": "committed"}'
    provider.released.set()
    _end_asking(migrated_url)
    service.start()

    def decided() -> bool:
        states = [service.get(f"/v1/outbox/messages/{one}")["state"] for one in (held["id"], prepared["id"])]
        return states == ["sent", "pending"]

    eventually(decided, 30, "both are decided")


def _end_asking(url: str) -> None:
    """As if the time of every question had passed."""
    engine = create_engine(make_url(url), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(
            update(outbox_reconciliations).where(outbox_reconciliations.c.due_at.is_not(None)).values(due_at=1)
        )
        connection.execute(
            update(outbox_messages).where(outbox_messages.c.state == int(State.PREPARED)).values(due_at=1)
        )
    engine.dispose()
