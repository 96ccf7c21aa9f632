"""What keys stop at while the service runs: a revocation during a wait, and the names that are not theirs."""

from __future__ import annotations

import threading
from typing import Any

import httpx

from tests.e2e.process import ServiceProcess, eventually


def _make_key(client: httpx.Client, *roles: str, patterns: tuple[str, ...] = ()) -> dict[str, Any]:
    answer = client.post("/v1/api-keys", json={"name": "test", "roles": list(roles), "patterns": list(patterns)})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def _speaking(service: ServiceProcess, key: dict[str, Any]) -> httpx.Client:
    return httpx.Client(
        base_url=service.url, headers={"Authorization": f"Bearer {key['key']}"}, timeout=40, trust_env=False
    )


def test_a_key_that_is_revoked_while_its_claim_waits_is_given_no_work(service: ServiceProcess) -> None:
    with service.client() as open_door:
        admin_key = _make_key(open_door, "admin")
    with _speaking(service, admin_key) as admin:
        worker_key = _make_key(admin, "worker")
        answers: list[httpx.Response] = []

        def wait() -> None:
            with _speaking(service, worker_key) as worker:
                answers.append(worker.post("/v1/jobs/claim", json={"queues": ["q"], "worker": "w", "wait_seconds": 20}))

        waiting = threading.Thread(target=wait)
        waiting.start()
        eventually(lambda: 'tenure_desk_waiting{desk="jobs"} 1.0' in admin.get("/metrics").text, 20, "the claim waits")
        assert admin.delete(f"/v1/api-keys/{worker_key['id']}").status_code == 200

        def refused() -> bool:
            with _speaking(service, worker_key) as worker:
                return worker.post("/v1/jobs/claim", json={"queues": ["other"], "worker": "w"}).status_code == 401

        eventually(refused, 10, "the revocation is in force")
        job = admin.post("/v1/jobs", json={"queue": "q", "type": "t", "payload": 1}).json()
        waiting.join(30)
        assert [answer.status_code for answer in answers] == [401]
        kept = admin.get(f"/v1/jobs/{job['id']}").json()
        assert (kept["state"], kept["attempt"]) == ("available", 0)


def test_a_key_that_is_limited_to_names_sees_no_others_in_health(service: ServiceProcess) -> None:
    with service.client() as open_door:
        admin_key = _make_key(open_door, "admin")
    with _speaking(service, admin_key) as admin:
        for queue in ("mine.a", "theirs.b"):
            assert admin.post("/v1/jobs", json={"queue": queue, "type": "t", "payload": 1}).status_code == 201
        limited_key = _make_key(admin, "viewer", patterns=("mine.*",))

        def names_for(client: httpx.Client) -> set[str]:
            return {check["name"] for check in client.get("/health").json()["checks"]}

        eventually(lambda: "jobs.theirs.b.depth" in names_for(admin), 30, "the figures are in")
        with _speaking(service, limited_key) as limited:
            seen = names_for(limited)
    assert "jobs.mine.a.depth" in seen
    assert not any("theirs" in name for name in seen)
