"""The service host's clock is an hour wrong, or jumps by an hour while it serves: leases go by the database's clock alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import ServiceProcess, eventually
from tests.servers.clocks import LIBRARY, MISSING, FakeClock
from tests.tools import needs

pytestmark = [
    pytest.mark.engines("mariadb", "mysql", "postgresql"),  # SQLite's clock is that of its one process
    needs(LIBRARY, MISSING),
]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# how far apart this host's clock and the service's measure of the database's may be read: both are read at some moment of a
# round trip. What is looked for is an hour.
ROUND_TRIP = 1


def claim(service: ServiceProcess, **options: Any) -> list[Any]:
    body = {"queues": ["q"], "worker": "w", "lease_seconds": 30, **options}
    jobs: list[Any] = service.post("/v1/jobs/claim", body, 200)["jobs"]
    return jobs


def seconds_left(moment: str) -> float:
    """From now by this host's clock, which is the database's too."""
    return (datetime.fromisoformat(moment) - datetime.now(UTC)) / timedelta(seconds=1)


@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_a_replica_whose_clock_is_an_hour_wrong_grants_and_keeps_leases_by_the_databases_clock(
    migrated_url: str, start_service: Callable[..., ServiceProcess], clock: FakeClock, tmp_path: Path, offset: str
) -> None:
    """Fault 18 and ShedLock#231: no lease is lost early, none is held too long, and nobody else gets the job."""
    clock.move(offset)
    wrong = start_service(migrated_url, **clock.environment(tmp_path))
    right = start_service(migrated_url)
    job = wrong.post("/v1/jobs", {"queue": "q", "type": "t", "payload": 1}, 201)
    assert abs(seconds_left(job["created_at"])) < 20
    (held,) = claim(wrong)
    assert 0 < seconds_left(held["reservation"]["expires_at"]) <= 30 + ROUND_TRIP
    assert claim(right) == []
    token = {"token": held["reservation"]["token"]}
    beat = wrong.post(f"/v1/jobs/{job['id']}/heartbeat", {**token, "lease_seconds": 60}, 200)
    assert 30 < seconds_left(beat["expires_at"]) <= 60 + ROUND_TRIP
    assert right.post(f"/v1/jobs/{job['id']}/complete", token, 200)["state"] == "succeeded"


@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_a_clock_that_jumps_by_an_hour_while_the_service_runs_costs_no_lease(
    migrated_url: str, start_service: Callable[..., ServiceProcess], clock: FakeClock, tmp_path: Path, offset: str
) -> None:
    service = start_service(migrated_url, log_level="debug", **clock.environment(tmp_path))
    service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": 1}, 201)
    (held,) = claim(service)
    clock.move(offset)
    logged = len(service.log())
    delayed = service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": 2, "delay_seconds": 1}, 201)
    eventually(lambda: service.get("/livez") and _jumped(service.log()[logged:], offset), 30, "it sees the other time")
    assert [job["id"] for job in claim(service, wait_seconds=20)] == [delayed["id"]], (
        "sweeps go by the database's clock"
    )
    token = {"token": held["reservation"]["token"]}
    assert service.post(f"/v1/jobs/{held['id']}/complete", token, 200)["state"] == "succeeded"
    assert service.get("/readyz")["status"] == "pass"


def _jumped(log: str, offset: str) -> bool:
    """Whether a line of the log carries the moved wall time. Lines are JSON, one an event."""
    hour = timedelta(hours=1 if offset.startswith("+") else -1)
    for line in log.splitlines():
        _, found, rest = line.partition('"timestamp":"')
        if found and abs(datetime.fromisoformat(rest.partition('"')[0]) - (datetime.now(UTC) + hour)) < timedelta(
            minutes=5
        ):
            return True
    return False
