"""The whole life of a job over real HTTP on a real process, and that process's own life."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.e2e.process import ServiceProcess, eventually, run_tenure
from tests.e2e.producers import Producers, assert_kept


def test_a_job_is_enqueued_claimed_kept_alive_and_completed(service: ServiceProcess) -> None:
    job = service.post("/v1/jobs", {"queue": "mail", "type": "mail.send", "payload": {"to": "ada"}}, 201)
    claim = {"queues": ["mail"], "worker": "w", "claim_id": "claim-0123456789abcdef", "lease_seconds": 5}
    (claimed,) = service.post("/v1/jobs/claim", claim, 200)["jobs"]
    assert (claimed["id"], claimed["payload"], claimed["attempt"]) == (job["id"], {"to": "ada"}, 1)
    token = claimed["reservation"]["token"]
    again = service.post("/v1/jobs/claim", claim, 200)
    assert again["replayed"]
    assert again["jobs"][0]["reservation"]["token"] == token
    beat = service.post(f"/v1/jobs/{job['id']}/heartbeat", {"token": token, "lease_seconds": 60}, 200)
    assert beat["expires_at"] > claimed["reservation"]["expires_at"]
    done = {"token": token, "result": {"sent": True}}
    assert service.post(f"/v1/jobs/{job['id']}/complete", done, 200)["state"] == "succeeded"
    assert service.post(f"/v1/jobs/{job['id']}/complete", done, 200)["replayed"]
    seen = service.get(f"/v1/jobs/{job['id']}?include=payload,result")
    assert (seen["state"], seen["result"], seen["attempt"]) == ("succeeded", {"sent": True}, 1)


def test_every_probe_of_a_healthy_process_answers_200(service: ServiceProcess) -> None:
    for probe in ("livez", "startupz", "readyz", "health"):
        assert service.get(f"/{probe}")["status"] in ("pass", "warn"), probe
    assert "tenure" in httpx.get(f"{service.url}/metrics", trust_env=False).text


def test_a_waiting_claim_gets_work_the_moment_that_it_comes(service: ServiceProcess) -> None:
    answers: list[Any] = []
    claim = {"queues": ["later"], "worker": "w", "wait_seconds": 30}
    waiting = threading.Thread(target=lambda: answers.append(service.post("/v1/jobs/claim", claim, 200)))
    waiting.start()
    job = service.post("/v1/jobs", {"queue": "later", "type": "t", "payload": 1}, 201)
    waiting.join(20)
    assert [one["id"] for one in answers[0]["jobs"]] == [job["id"]]


def test_sigterm_answers_fifty_waiting_claims_empty_and_exits_with_0(service: ServiceProcess) -> None:
    answers: list[Any] = []
    claim = {"queues": ["nothing"], "worker": "w", "wait_seconds": 30}
    waiting = [
        threading.Thread(target=lambda: answers.append(service.post("/v1/jobs/claim", claim, 200))) for _ in range(50)
    ]
    for thread in waiting:
        thread.start()
    eventually(lambda: _waiting_claims(service) == 50, what="all claims wait")
    began = time.monotonic()
    assert service.terminate() == 0
    assert time.monotonic() - began < 3  # 0.2 s on a machine with nothing else to do; the claims would wait 30 s
    for thread in waiting:
        thread.join(10)
    assert [answer["jobs"] for answer in answers] == [[]] * 50


def _waiting_claims(service: ServiceProcess) -> int:
    for line in httpx.get(f"{service.url}/metrics", trust_env=False, timeout=30).text.splitlines():
        if line.startswith('tenure_desk_waiting{desk="jobs"}'):
            return int(float(line.rsplit(" ", 1)[1]))
    return -1


def test_sigterm_under_load_loses_no_acknowledged_job(
    service: ServiceProcess, producers: Callable[..., Producers]
) -> None:
    load = producers(service)
    load.go_on(50)
    assert service.terminate() == 0
    service.start()
    load.go_on(20)
    load.stop()
    assert_kept(load, service.url)


def test_sigint_ends_the_service_like_sigterm(service: ServiceProcess) -> None:
    service.process.send_signal(signal.SIGINT)
    assert service.process.wait(20) == 0


@pytest.mark.engines("sqlite")
def test_a_second_process_on_one_sqlite_file_is_refused_with_one_line(
    service: ServiceProcess, migrated_url: str
) -> None:
    for arguments in (
        ["serve", "--port", "0"],
        ["loops"],
        ["keys", "create", "--direct", "--name", "n", "--role", "admin"],
    ):
        second = run_tenure(*arguments, database_url=migrated_url)
        assert (second.returncode, second.stdout) == (1, ""), arguments
        (line,) = second.stderr.splitlines()
        assert f"in use by the process {service.pid}" in line
    assert service.get("/readyz")["status"] == "pass"
