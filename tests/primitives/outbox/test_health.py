"""What health checks and metrics tell of the outbox, on every engine."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Executable, insert, update

from app.db.database import Database
from app.db.tx import Tx
from app.primitives.outbox.delivery.breaker import TRIPS_AFTER
from app.primitives.outbox.delivery.couriers import Couriers
from app.primitives.outbox.model.states import Doubt
from app.primitives.outbox.tables import outbox, outbox_reconciliations
from tests.outgoing.peer import serving
from tests.primitives.outbox.test_delivery import SETTINGS, answering, record, set_up
from tests.service import Service, running, until

pytestmark = pytest.mark.anyio


def execute(database: Database, statement: Executable) -> None:
    """One committed statement past every verb."""

    def run(tx: Tx, commands: Sequence[None]) -> Sequence[None]:
        tx.conn.execute(statement)
        return commands

    database.run(run, [None])


async def checks(service: Service) -> dict[str, Any]:
    body = await service.get("/health")
    return {check["name"]: check for check in body["checks"]}


async def claimed(service: Service, name: str = "d") -> tuple[str, str]:
    """(id, token) of a message that is recorded and claimed."""
    await record(service, name)
    answer = await service.post("/v1/outbox/claim", {"destinations": [name], "worker": "w"}, status=200)
    (message,) = answer["messages"]
    return message["id"], message["reservation"]["token"]


async def settle(service: Service, how: str, message_id: str, token: str, **fields: Any) -> None:
    await service.post(f"/v1/outbox/messages/{message_id}/{how}", {"token": token, **fields}, status=200)


async def scrape(service: Service) -> set[str]:
    """The lines of `/metrics`, with a report that is read now."""
    service.runtime.state("outbox").report = None
    await service.get("/health")
    return set((await service.client.get("/metrics")).text.splitlines())


async def test_each_destination_is_judged_by_the_thresholds(service: Service) -> None:
    await service.put("/v1/outbox/destinations/d", {"delivery": {"mode": "pull"}}, status=201)
    await record(service)
    told = await checks(service)
    assert told["outbox.d.waiting"] | {"output": None} == {
        "name": "outbox.d.waiting",
        "status": "pass",
        "value": 1,
        "unit": "messages",
        "output": None,
    }
    assert {told[f"outbox.d.{figure}"]["status"] for figure in ("oldest_pending", "dead", "unknown")} == {"pass"}
    assert told["outbox.set_aside"]["value"] == 0
    service.move(service.runtime.settings.health_outbox_oldest_seconds + 1)
    told = await checks(service)
    assert told["outbox.d.oldest_pending"]["status"] == "warn"
    assert "destination d: " in told["outbox.d.oldest_pending"]["output"]


async def test_what_may_have_been_sent_warns_until_it_is_decided(service: Service, database: Database) -> None:
    await service.put("/v1/outbox/destinations/d", {"delivery": {"mode": "pull"}}, status=201)
    message_id, token = await claimed(service)
    await settle(service, "unknown", message_id, token, category="no_answer")
    told = await checks(service)
    assert (told["outbox.d.unknown"]["status"], told["outbox.d.unknown"]["value"]) == ("warn", 1)
    assert told["outbox.d.needs_operator"]["status"] == "pass"
    execute(database, update(outbox_reconciliations).values(state=int(Doubt.OPERATOR)))
    service.move(60)
    told = await checks(service)
    assert (told["outbox.d.needs_operator"]["status"], told["outbox.d.needs_operator"]["value"]) == ("warn", 1)
    verdict = {"verdict": "sent", "evidence": {"seen": "in the ledger"}}
    await service.post(f"/v1/outbox/messages/{message_id}/reconcile", verdict, status=200)
    service.move(60)
    told = await checks(service)
    assert told["outbox.d.unknown"]["status"] == told["outbox.d.needs_operator"]["status"] == "pass"


async def test_rows_that_were_set_aside_warn(service: Service, database: Database) -> None:
    row = {"message_key": "k", "type": "t", "destination": "nowhere", "payload": "{}"}
    execute(database, insert(outbox).values(**row))
    assert await service.sweep("outbox.adopt") == 1
    told = await checks(service)
    assert (told["outbox.set_aside"]["status"], told["outbox.set_aside"]["value"]) == ("warn", 1)


async def test_metrics_tell_messages_by_state_and_count_what_happened(service: Service) -> None:
    await service.put("/v1/outbox/destinations/d", {"delivery": {"mode": "pull"}}, status=201)
    ends = {
        "sent": {},
        "retry": {"category": "busy", "retry_after_seconds": 60},
        "reject": {"category": "bad"},
        "unknown": {"category": "no_answer"},
        "release": {"reason": "shutdown"},
    }
    for how, fields in ends.items():
        await settle(service, how, *await claimed(service), **fields)
    lines = await scrape(service)
    counts = {"sent": 1, "pending": 2, "dead": 1, "unknown": 1, "blocked": 0, "prepared": 0, "sending": 0, "aborted": 0}
    for state, amount in counts.items():
        assert f'tenure_outbox_messages{{destination="d",state="{state}"}} {amount}.0' in lines
    labels = 'destination="d"'
    for outcome in ("sent", "retried", "rejected", "unknown", "released", "dead"):
        assert f'tenure_outbox_settlements_total{{{labels},outcome="{outcome}",type="order.paid"}} 1.0' in lines
    assert f'tenure_outbox_recorded_total{{{labels},type="order.paid"}} 5.0' in lines
    assert f'tenure_outbox_claims_total{{{labels},type="order.paid"}} 5.0' in lines
    assert f"tenure_outbox_needs_operator{{{labels}}} 0.0" in lines
    assert "tenure_outbox_set_aside 0.0" in lines


async def test_the_first_scrape_asks_for_a_report_and_waits_for_nothing(service: Service) -> None:
    await service.put("/v1/outbox/destinations/d", {"delivery": {"mode": "pull"}}, status=201)
    await record(service)
    assert "tenure_outbox_messages{" not in (await service.client.get("/metrics")).text

    async def told() -> bool:
        line = 'tenure_outbox_messages{destination="d",state="pending"} 1.0'
        return line in (await service.client.get("/metrics")).text

    assert await until(told)


async def test_a_destination_that_is_left_alone_and_one_whose_secrets_are_lost_are_told(database: Database) -> None:
    async with running(database, **SETTINGS) as service, serving(answering(500)) as peer:
        await set_up(service, peer, idempotent=True, max_attempts=1)
        for _ in range(TRIPS_AFTER):
            await record(service)
        couriers: Couriers = service.runtime.state("outbox.couriers")

        async def tripped() -> bool:
            return couriers.by_name["d"].breaker.tripped

        await until(tripped)
        told = await checks(service)
        assert told["outbox.d.delivery"]["status"] == "warn"
        assert "fails again and again" in told["outbox.d.delivery"]["output"]
        lines = await scrape(service)
        assert 'tenure_delivery_left_alone{destination="d"} 1.0' in lines
        count = f'tenure_delivery_seconds_count{{destination="d",outcome="retry"}} {TRIPS_AFTER}.0'
        assert count in lines
        signed = {"url": peer.url(), "signing_secret": "whsec_" + base64.b64encode(b"s" * 32).decode()}
        await set_up(service, peer, "signed", delivery=signed)
    lost = SETTINGS | {"encryption_keys": [base64.b64encode(secrets.token_bytes(32)).decode()]}
    async with running(database, **lost) as service:
        await service.runtime.state("outbox.couriers").refresh()
        told = await checks(service)
        assert told["outbox.signed.delivery"]["status"] == "warn"
        assert "destination signed is not delivered to" in told["outbox.signed.delivery"]["output"]
