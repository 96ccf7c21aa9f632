"""Locks, idempotency keys and the cache as two real replicas serve them, of which one is killed or frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.process import ServiceProcess, eventually

pytestmark = pytest.mark.engines("mariadb", "mysql", "postgresql")
SECONDS = 60.0
ENTRY = "/v1/cache/plans/k"
KEY = {"scope": "s", "key": "k"}
Start = Callable[..., ServiceProcess]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as made:
        yield made


@pytest.fixture
def replicas(migrated_url: str, start_service: Start) -> tuple[ServiceProcess, ServiceProcess]:
    return start_service(migrated_url), start_service(migrated_url)


def acquire(service: ServiceProcess, owner: str, wait: float = 0, status: int | None = 200) -> Any:
    wanted = {"name": "l", "owner": owner, "ttl_seconds": 60, "wait_seconds": wait}
    return service.post("/v1/locks/acquire", wanted, status)


def release(service: ServiceProcess, held: Any) -> None:
    service.post("/v1/locks/release", {"name": "l", "token": held["reservation"]["token"]}, 200)


def in_line(service: ServiceProcess, calls: int) -> None:
    eventually(lambda: service.get("/v1/locks")["items"][0]["waiters"] >= calls, SECONDS, f"{calls} stand in line")


def test_a_lock_is_served_in_the_order_of_arrival_across_replicas(
    replicas: tuple[ServiceProcess, ServiceProcess], pool: ThreadPoolExecutor
) -> None:
    here, there = replicas
    held = acquire(here, "first")
    waiting: list[Future[Any]] = []
    for number in range(6):
        waiting.append(pool.submit(acquire, replicas[number % 2], f"w{number}", 30))
        in_line(here, number + 1)
    fences = [held["reservation"]["fence"]]
    for call in waiting:
        release(there, held)
        held = call.result(SECONDS)
        fences.append(held["reservation"]["fence"])
    assert fences == list(range(fences[0], fences[0] + 7)), "each got it in its turn"


def test_who_waits_at_a_replica_that_is_killed_holds_up_nobody(
    replicas: tuple[ServiceProcess, ServiceProcess], pool: ThreadPoolExecutor
) -> None:
    here, there = replicas
    held = acquire(there, "first")
    lost = pool.submit(acquire, here, "lost", 30)
    in_line(there, 1)
    waits = pool.submit(acquire, there, "waits", 30)
    in_line(there, 2)
    here.kill()
    assert lost.exception(SECONDS) is not None
    release(there, held)
    assert waits.result(SECONDS)["reservation"]["fence"] == 2


def test_a_value_is_made_by_the_next_when_its_filler_and_their_replica_are_killed(
    replicas: tuple[ServiceProcess, ServiceProcess], pool: ThreadPoolExecutor
) -> None:
    here, there = replicas
    first = here.post(f"{ENTRY}/remember", {"lease_seconds": 3}, 200)
    waiting = [pool.submit(there.post, f"{ENTRY}/remember", {"wait_seconds": 30}, 200) for _ in range(5)]
    here.kill()
    eventually(lambda: any(call.done() for call in waiting), SECONDS, "one is promoted")
    (second,) = (call.result() for call in waiting if call.done())
    assert (second["state"], second["reservation"]["fence"]) == ("fill", 2)
    filled = {"token": second["reservation"]["token"], "value": "v", "ttl_seconds": 600}
    there.post(f"{ENTRY}/fill", filled, 200)
    told = sorted(call.result(SECONDS)["state"] for call in waiting)
    assert told == ["fill", *["fresh"] * 4]
    late = {"token": first["reservation"]["token"], "value": "late", "ttl_seconds": 600}
    assert there.post(f"{ENTRY}/fill", late, 409)["reason"] == "superseded"
    here.start()
    assert here.get(ENTRY)["value"] == "v"


def test_a_replica_that_was_frozen_gives_out_nothing_that_others_have(
    replicas: tuple[ServiceProcess, ServiceProcess], pool: ThreadPoolExecutor
) -> None:
    """Calls that it had taken before are carried out late, against what is true then."""
    here, there = replicas
    owned = here.post("/v1/idempotency/check", {**KEY, "fingerprint": "f", "lease_seconds": 60}, 200)
    here.pause()
    late = [
        pool.submit(here.post, f"{ENTRY}/remember", {}, None),
        pool.submit(acquire, here, "late", 0, None),
        pool.submit(here.post, "/v1/idempotency/check", {**KEY, "fingerprint": "f"}, None),
    ]
    taken = there.post(f"{ENTRY}/remember", {}, 200)
    acquire(there, "other")
    token = owned["reservation"]["token"]
    there.post("/v1/idempotency/complete", {**KEY, "token": token, "result": 1}, 200)
    here.resume()
    entry, lock, key = (call.result(SECONDS) for call in late)
    assert (taken["state"], entry["state"]) == ("fill", "filling")
    assert (lock["code"], lock["owner"]) == ("locked", "other")
    assert (key["outcome"], key["result"]) == ("replay", 1)
