"""What a client on a kept connection is told when the service ends."""

from __future__ import annotations

import threading

import httpx

from tests.e2e.process import ServiceProcess, eventually


def test_sigterm_tells_a_waiting_worker_to_close_its_connection_so_that_its_next_request_is_not_reset(
    service: ServiceProcess,
) -> None:
    answers: list[httpx.Response] = []
    claim = {"queues": ["q"], "worker": "w", "wait_seconds": 30}

    def wait() -> None:
        with service.client() as client:
            answers.append(client.post("/v1/jobs/claim", json=claim))

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    for thread in waiting:
        thread.start()
    line = 'tenure_desk_waiting{desk="jobs"} 3.0'
    eventually(lambda: line in httpx.get(f"{service.url}/metrics", trust_env=False).text, 20, "the claims wait")
    assert service.terminate() == 0
    for thread in waiting:
        thread.join(10)
    assert [(answer.status_code, answer.headers.get("connection")) for answer in answers] == [(200, "close")] * 3
