"""Processes that die or freeze in the middle of work: the service, the database, a worker."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.process import ServiceProcess
from tests.e2e.producers import Producers, assert_kept
from tests.servers import Server

# claims one job, says so, and waits for a line before it completes the job and says how that was answered
WORKER = """
import httpx, sys
url = sys.argv[1]
claim = {"queues": ["frozen"], "worker": "sleeper", "lease_seconds": 5, "wait_seconds": 20}
(job,) = httpx.post(url + "/v1/jobs/claim", json=claim, timeout=60, trust_env=False).json()["jobs"]
print(job["attempt"], flush=True)
sys.stdin.readline()
body = {"token": job["reservation"]["token"], "result": "from the frozen one"}
for verb in ("heartbeat", "complete"):
    sent = {"token": body["token"]} if verb == "heartbeat" else body
    answer = httpx.post(f"{url}/v1/jobs/{job['id']}/{verb}", json=sent, timeout=60, trust_env=False)
    print(answer.status_code, answer.json().get("code"), flush=True)
"""


def test_kill_9_of_the_service_under_load_loses_and_doubles_nothing(
    service: ServiceProcess, producers: Callable[..., Producers]
) -> None:
    load = producers(service)
    for _ in range(3):
        load.go_on(40)
        service.kill()
        service.start()
    load.go_on(20)
    load.stop()
    assert load.unanswered > 0, "the kill came between a request and its answer"
    assert_kept(load, service.url)


def test_kill_9_of_the_database_under_load_loses_and_doubles_nothing(
    faulty_server: Server, service: ServiceProcess, producers: Callable[..., Producers]
) -> None:
    """Fault 5: every 2xx is in the database, and none is invented; the service comes back by itself."""
    load = producers(service)
    for _ in range(2):
        load.go_on(40)
        faulty_server.kill()
        faulty_server.start()
    load.go_on(20)
    load.stop()
    assert_kept(load, service.url)
    assert service.get("/readyz")["status"] == "pass"


def test_a_claim_whose_service_was_killed_is_given_again_by_its_claim_id(service: ServiceProcess) -> None:
    service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": None}, 201)
    claim = {"queues": ["q"], "worker": "w", "claim_id": "a-claim-that-nobody-guesses"}
    first = service.post("/v1/jobs/claim", claim, 200)
    service.kill()
    service.start()
    second = service.post("/v1/jobs/claim", claim, 200)
    assert second["replayed"]
    assert second["jobs"] == first["jobs"]


@pytest.fixture
def frozen_worker(
    migrated_url: str, start_service: Callable[..., ServiceProcess]
) -> Iterator[tuple[ServiceProcess, subprocess.Popen[str]]]:
    """A worker that claimed the only job of its queue and was stopped with SIGSTOP."""
    service = start_service(migrated_url, jobs_backoff_seconds="[0]")
    service.post("/v1/jobs", {"queue": "frozen", "type": "t", "payload": None}, 201)
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, service.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "1\n"
        worker.send_signal(signal.SIGSTOP)
        yield service, worker
        worker.kill()


def test_a_worker_frozen_past_its_lease_is_told_409_and_the_second_workers_result_stands(
    frozen_worker: tuple[ServiceProcess, subprocess.Popen[str]],
) -> None:
    """Fault 6: the lease ends while the worker is stopped; somebody else does the work; the first one wakes up."""
    service, worker = frozen_worker
    claim: dict[str, Any] = {"queues": ["frozen"], "worker": "second", "wait_seconds": 30}
    (job,) = service.post("/v1/jobs/claim", claim, 200)["jobs"]
    assert (job["attempt"], job["reservation"]["fence"]) == (2, 2)
    done = {"token": job["reservation"]["token"], "result": "from the second one"}
    service.post(f"/v1/jobs/{job['id']}/complete", done, 200)
    worker.send_signal(signal.SIGCONT)
    output, _ = worker.communicate("go on\n", timeout=30)
    assert output.splitlines() == ["409 reservation_lost", "409 reservation_lost"]
    seen = service.get(f"/v1/jobs/{job['id']}?include=result")
    assert (seen["state"], seen["result"], seen["attempt"], seen["lease_losses"]) == (
        "succeeded", "from the second one", 2, 1,
    )  # fmt: skip


def test_kill_9_of_the_holder_of_a_concurrency_key_lets_the_next_in(
    migrated_url: str, start_service: Callable[..., ServiceProcess]
) -> None:
    """hatchet#4494, pgqueuer#474/#475, solid_queue#546 (scenario 20): a slot leaked by a dead worker, or by a dead service."""
    service = start_service(migrated_url, jobs_backoff_seconds="[60]")
    body = {"queue": "frozen", "type": "t", "payload": None, "concurrency": {"key": "k", "limit": 1}}
    first, second = (service.post("/v1/jobs", body, 201) for _ in range(2))
    assert second["state"] == "blocked"
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, service.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "1\n"
        worker.kill()
    service.kill()
    service.start()
    claim: dict[str, Any] = {"queues": ["frozen"], "worker": "second", "wait_seconds": 30}
    (job,) = service.post("/v1/jobs/claim", claim, 200)["jobs"]
    assert job["id"] == second["id"]
    service.post(f"/v1/jobs/{job['id']}/complete", {"token": job["reservation"]["token"]}, 200)
    assert service.get(f"/v1/jobs/{first['id']}")["state"] == "scheduled"
    third = service.post("/v1/jobs", body, 201)
    assert third["state"] == "available", "no slot is lost"
