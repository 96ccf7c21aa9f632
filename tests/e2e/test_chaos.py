"""Everybody does everything with messages at once, while processes and the database are killed: what must hold, holds.

`TENURE_TEST_CHAOS_SECONDS` says for how long; a few seconds keep the suite quick, minutes are for a night.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from sqlalchemy import NullPool, create_engine, insert, make_url
from sqlalchemy.exc import DBAPIError

from app.db.database import Database
from app.primitives.outbox.tables import outbox
from tests.e2e.process import ServiceProcess
from tests.e2e.provider import Provider
from tests.primitives.outbox.driving import Host, Outbox
from tests.primitives.outbox.lined import check
from tests.servers import Engine, Server

SECONDS = float(os.environ.get("TENURE_TEST_CHAOS_SECONDS", "8"))
CALLERS = 5
PULLED = ["pull", "bears", "gone"]
SETTINGS: dict[str, Any] = {
    "delivery_allowed_targets": "127.0.0.1",
    "delivery_grace_seconds": 1,
    "outbox_ask_backoff_seconds": "[0.2]",
    "outbox_ask_timeout_seconds": 2,
}
Start = Callable[..., ServiceProcess]


class Moody(Provider):
    """Takes, refuses, breaks off and keeps silent as it likes. `taken`: calls of which nobody can say that they did nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: Counter[str] = Counter()

    def mood(self, key: str) -> int | None:
        status = random.choice([200, 200, 200, 200, 429, 400, 500, None])
        if status not in (429, 400):
            self.taken[key] += 1
        self.answer = random.choice([b"committed", b"rolled_back", b'{"verdict": "dead"}', b"undecided"])
        return status


@pytest.fixture
def provider() -> Iterator[Moody]:
    with Moody() as one:
        yield one


class Caller:
    """One of those who do everything, over HTTP at any of the replicas, and by SQL."""

    def __init__(self, replicas: list[ServiceProcess], url: str, provider: Moody, deadline: float) -> None:
        self.replicas = replicas
        self.provider = provider
        self.deadline = deadline
        self.wrong: list[str] = []
        self.statuses: Counter[int] = Counter()
        self.held: deque[tuple[str, str]] = deque(maxlen=50)
        self.doubts: deque[tuple[str, str]] = deque(maxlen=20)
        self.known: deque[str] = deque(maxlen=100)
        self.engine = create_engine(make_url(url), poolclass=NullPool)
        self.client = httpx.Client()

    def run(self) -> None:
        acts = (
            [self.record] * 6 + [self.settle] * 5 + [self.claim] * 3 + [self.decide, self.write, self.doubt, self.find]
        )
        acts += [self.judge, self.keep_house, self.look]
        while time.monotonic() < self.deadline:
            # a replica or the database may be gone at this moment; what was answered is what counts
            with (
                suppress(httpx.HTTPError, DBAPIError),
                httpx.Client(base_url=random.choice(self.replicas).url, timeout=20) as self.client,
            ):
                for _ in range(20):
                    random.choice(acts)()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.client.request(method, path, json=body)
        self.statuses[answer.status_code] += 1
        unexpected = answer.status_code >= 500 and answer.status_code != 503
        if unexpected or (answer.status_code == 503 and "retry-after" not in answer.headers):
            self.wrong.append(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer.json() if answer.status_code < 300 else None

    def record(self) -> None:
        prepare = {"decide_within_seconds": random.choice([0.1, 1]), "check_url": self.provider.url}
        made = self.call(
            "POST",
            "/v1/outbox/messages",
            {
                "message_key": secrets.token_hex(8),
                "type": random.choice("ab"),
                "destination": random.choice([*PULLED, "pull", "sent"]),
                "payload": {"n": 1},
                "ordering_key": random.choice([None, *"uvwxyz"]),
                "prepare": prepare if random.random() < 0.2 else None,
            },
        )
        if made is not None:
            self.known.append(made["id"])

    def write(self) -> None:
        row = {
            "message_key": secrets.token_hex(8),
            "type": "a",
            "destination": random.choice([*PULLED, "sent", "nowhere"]),
            "payload": random.choice(['{"n": 1}', "{"]),
            "ordering_key": random.choice([None, "x"]),
        }
        with self.engine.begin() as connection:
            connection.execute(insert(outbox).values(**row))

    def claim(self) -> None:
        body = {"destinations": PULLED, "worker": "w", "limit": 3, "lease_seconds": 5}
        found = self.call("POST", "/v1/outbox/claim", body) or {"messages": []}
        self.held += [(one["id"], one["reservation"]["token"]) for one in found["messages"]]

    def settle(self) -> None:
        if self.held:
            message_id, token = random.choice(self.held)
            ways: list[tuple[str, dict[str, Any]]] = [
                ("sent", {}),
                ("sent", {}),
                ("retry", {"category": "busy", "retry_after_seconds": 0.1}),
                ("reject", {"category": "bad"}),
                ("unknown", {"category": "no_answer"}),
                ("release", {"reason": "shutdown"}),
                ("heartbeat", {}),
            ]
            how, more = random.choice(ways)
            self.call("POST", f"/v1/outbox/messages/{message_id}/{how}", {"token": token, **more})

    def decide(self) -> None:
        if self.known:
            self.call("POST", f"/v1/outbox/messages/{random.choice(self.known)}/{random.choice(['confirm', 'abort'])}")

    def doubt(self) -> None:
        body = {"destinations": PULLED, "worker": "r", "limit": 3, "lease_seconds": 5}
        found = self.call("POST", "/v1/outbox/reconciliations/claim", body) or {"messages": []}
        self.doubts += [(one["id"], one["reservation"]["token"]) for one in found["messages"]]

    def find(self) -> None:
        if self.doubts:
            message_id, token = random.choice(self.doubts)
            body = {"token": token, "verdict": random.choice(["sent", "retry", "dead", "undecided"]), "evidence": 1}
            self.call("POST", f"/v1/outbox/reconciliations/{message_id}/verdict", body)

    def judge(self) -> None:
        """Not of what the service delivers: who says `retry` of that says that it was not sent."""
        message = self.call("GET", f"/v1/outbox/messages/{random.choice(self.known)}") if self.known else None
        if message is not None and message["destination"] != "sent":
            body = {"verdict": random.choice(["sent", "retry", "dead"]), "evidence": 2}
            self.call("POST", f"/v1/outbox/messages/{message['id']}/reconcile", body)

    def keep_house(self) -> None:
        ended = {"state": random.choice(["sent", "dead", "aborted"]), "older_than_seconds": 2, "limit": 5}
        path, body = random.choice(
            [
                ("requeue", {"destination": random.choice(PULLED), "limit": 5}),
                ("release-stale", {"claimed_before_seconds": 3, "limit": 5}),
                ("purge", ended),
            ]
        )
        self.call("POST", f"/v1/outbox/{path}", body)

    def look(self) -> None:
        self.call("GET", random.choice(["/v1/outbox/stats", "/v1/outbox/messages?state=unknown"]))


def test_whatever_is_done_and_killed_no_line_stands_and_nothing_is_sent_twice(
    server: Engine, migrated_url: str, start_service: Start, provider: Moody
) -> None:
    whole = server if isinstance(server, Server) else None  # there is none to kill behind an embedded database
    replicas = [start_service(migrated_url, **SETTINGS) for _ in range(1 if whole is None else 2)]
    set_up(replicas[0], provider)
    deadline = time.monotonic() + SECONDS
    callers = [Caller(replicas, migrated_url, provider, deadline) for _ in range(CALLERS)]
    threads = [threading.Thread(target=caller.run) for caller in callers]
    for thread in threads:
        thread.start()
    pause, kills = threading.Event(), 0
    while time.monotonic() < deadline - 3:
        pause.wait(2)
        kills += 1
        if whole is None or kills % 3:
            victim = random.choice(replicas)
            victim.kill()
            victim.start()
        else:
            whole.kill()
            whole.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert [wrong for caller in callers for wrong in caller.wrong] == []
    assert sum((caller.statuses for caller in callers), Counter())[201] > 0
    for replica in replicas:
        replica.terminate()
    assert not {key: count for key, count in provider.taken.items() if count > 1 and key not in ("check", "inquiry")}
    database = Database(migrated_url)
    database.open()
    check(Outbox(database, Host()))
    database.shutdown()
    server.heal()


def set_up(service: ServiceProcess, provider: Moody) -> None:
    asked = {"mode": "http", "url": provider.url}
    terms: dict[str, dict[str, Any]] = {
        "sent": {"delivery": {"mode": "http", "url": provider.url, "timeout_seconds": 1.5}, "reconcile": asked},
        "pull": {},
        "bears": {"idempotent": True, "on_lease_loss": "retry", "late_ack": "accept"},
        "gone": {"delete_sent": True},
    }
    for name, fields in terms.items():
        service.put(
            f"/v1/outbox/destinations/{name}", {"backoff_seconds": [0.1], "max_attempts": 3, **fields}, 200, 201
        )
