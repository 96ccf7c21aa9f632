"""Two service processes on one server database. They do not know each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.e2e.process import ServiceProcess, eventually, run_tenure
from tests.e2e.producers import QUEUE, Producers, assert_kept, listed

pytestmark = pytest.mark.engines("mariadb", "mysql", "postgresql")


@pytest.fixture
def replicas(migrated_url: str, start_service: Callable[..., ServiceProcess]) -> tuple[ServiceProcess, ServiceProcess]:
    return start_service(migrated_url), start_service(migrated_url)


def test_work_enqueued_at_one_replica_is_found_by_a_claim_that_waits_at_the_other(
    replicas: tuple[ServiceProcess, ServiceProcess],
) -> None:
    first, second = replicas
    answers: list[Any] = []
    claim = {"queues": ["shared"], "worker": "w", "wait_seconds": 30}
    waiting = threading.Thread(target=lambda: answers.append(second.post("/v1/jobs/claim", claim, 200)))
    waiting.start()
    job = first.post("/v1/jobs", {"queue": "shared", "type": "t", "payload": 1}, 201)
    waiting.join(10)
    assert [one["id"] for one in answers[0]["jobs"]] == [job["id"]]
    token = answers[0]["jobs"][0]["reservation"]["token"]
    assert first.post(f"/v1/jobs/{job['id']}/complete", {"token": token}, 200)["state"] == "succeeded"


def test_each_job_goes_to_one_of_the_workers_of_both_replicas(
    replicas: tuple[ServiceProcess, ServiceProcess], producers: Callable[..., Producers]
) -> None:
    load = producers(*replicas)
    done: list[str] = []

    def work(service: ServiceProcess) -> None:
        claim = {"queues": [QUEUE], "worker": "w", "limit": 5, "lease_seconds": 60, "wait_seconds": 1}
        with service.client() as http:
            while (jobs := http.post("/v1/jobs/claim", json=claim).json()["jobs"]) or not load.finished:
                for job in jobs:
                    body = {"token": job["reservation"]["token"]}
                    assert http.post(f"/v1/jobs/{job['id']}/complete", json=body).status_code == 200
                    done.append(job["id"])

    workers = [threading.Thread(target=work, args=(service,)) for service in (*replicas, *replicas)]
    for worker in workers:
        worker.start()
    load.go_on(150)
    load.stop()
    for worker in workers:
        worker.join(60)
    assert sorted(done) == sorted(load.acknowledged().values())
    assert_kept(load, replicas[1].url)
    assert {job["state"] for job in listed(replicas[0].url, queue=QUEUE)} == {"succeeded"}


def test_a_key_is_in_force_and_revoked_within_3_seconds_on_every_replica(
    replicas: tuple[ServiceProcess, ServiceProcess], migrated_url: str
) -> None:
    made = run_tenure("keys", "create", "--direct", "--name", "first", "--role", "admin", database_url=migrated_url)
    admin = {"authorization": f"Bearer {made.stdout.strip()}"}
    first, second = replicas
    eventually(lambda: _status(first, admin) == _status(second, admin) == 200, 3, "the first key is in force")
    eventually(lambda: _status(first, {}) == _status(second, {}) == 401, 3, "nobody is let in without a key")
    body = {"name": "viewer", "roles": ["viewer"]}
    key = httpx.post(f"{first.url}/v1/api-keys", json=body, headers=admin, trust_env=False).json()
    viewer = {"authorization": f"Bearer {key['key']}"}
    assert _status(first, viewer) == 200, "at once where it was made"
    eventually(lambda: _status(second, viewer) == 200, 3, "the key is in force at the other replica")
    httpx.delete(f"{first.url}/v1/api-keys/{key['id']}", headers=admin, trust_env=False).raise_for_status()
    assert _status(first, viewer) == 401, "at once where it was revoked"
    eventually(lambda: _status(second, viewer) == 401, 3, "the key is refused at the other replica")


def _status(service: ServiceProcess, headers: dict[str, str]) -> int:
    return httpx.get(f"{service.url}/v1/jobs", headers=headers, trust_env=False, timeout=30).status_code


def test_one_replica_takes_over_what_the_other_held_when_it_was_killed(
    migrated_url: str, start_service: Callable[..., ServiceProcess]
) -> None:
    """The lease outlives its process: the worker goes on with its token at another replica."""
    first, second = start_service(migrated_url), start_service(migrated_url)
    job = first.post("/v1/jobs", {"queue": "q", "type": "t", "payload": 1}, 201)
    (claimed,) = first.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w"}, 200)["jobs"]
    first.kill()
    token = claimed["reservation"]["token"]
    assert second.post(f"/v1/jobs/{job['id']}/heartbeat", {"token": token}, 200)["cancel_requested"] is False
    assert second.post(f"/v1/jobs/{job['id']}/complete", {"token": token}, 200)["state"] == "succeeded"
