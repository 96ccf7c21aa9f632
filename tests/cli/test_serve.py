"""`tenure serve`, `loops`, `healthcheck`: how they start, and how they refuse to."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from app.db import migrate
from tests.e2e.process import ROOT, ServiceProcess, environment, eventually, run_tenure

# a skin over verbs that are tested on every engine: an embedded database and a server are enough for what is its own
pytestmark = pytest.mark.engines("sqlite", "mariadb")


def refusal(result: subprocess.CompletedProcess[str]) -> str:
    """The one line that a process says which does not start."""
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def test_the_start_tells_a_newcomer_what_to_try(migrated_url: str) -> None:
    with ServiceProcess(migrated_url) as service:
        listens, keyless, attempt, *_ = service.log().splitlines()
        assert service.url in listens
        assert "There is no API key yet" in keyless
        assert attempt.startswith("Try: curl --json")
        assert service.url in attempt


def test_without_any_key_an_address_that_others_can_reach_is_refused(migrated_url: str) -> None:
    result = run_tenure("serve", "--port", "0", "--host", "0.0.0.0", database_url=migrated_url)
    assert result.returncode == 1
    assert "there is no API key" in refusal(result)
    made = run_tenure("keys", "create", "--direct", "--name", "n", "--role", "admin", database_url=migrated_url)
    assert made.returncode == 0
    with ServiceProcess(migrated_url, host="0.0.0.0") as service:
        assert service.get("/readyz")["status"] == "pass"
        assert "Authorization: Bearer" in service.log()


def test_a_port_in_use_is_told_in_one_line(migrated_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_tenure("serve", "--port", str(port), database_url=migrated_url)
    assert result.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in refusal(result)


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_a_schema_that_is_behind_is_told_in_one_line_with_exit_code_3(database_url: str) -> None:
    for arguments in (("serve", "--port", "0"), ("loops",)):
        result = run_tenure(*arguments, database_url=database_url)
        assert result.returncode == 3
        assert "run `tenure migrate`" in refusal(result)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "eighty"), ("database_url", "mysql+mysqldb://u:hush-hush@localhost/x"), ("database_url", "oracle://localhost/x"),
        ("database_url", "not a url"), ("database_url", "sqlite:///:memory:"), ("table_prefix", "Bad-Prefix"),
        ("jobs_backoff_seconds", "[]"), ("log_level", "loud"), ("request_timeout_seconds", "0"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_told_in_one_line_with_exit_code_2(name: str, value: str) -> None:
    result = run_tenure("serve", **{name: value})
    line = refusal(result)
    assert result.returncode == 2, line
    assert f"TENURE_{name.upper()}" in line
    assert "hush" not in line


def test_a_database_that_does_not_answer_is_told_in_one_line_without_its_password() -> None:
    result = run_tenure("serve", "--port", "0", database_url="mysql+pymysql://u:hush-hush@127.0.0.1:9/x")
    assert result.returncode == 1
    line = refusal(result)
    assert "no connection to mysql://127.0.0.1:9/x" in line
    assert "hush" not in line


def test_loops_run_alone_until_sigterm(migrated_url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "app", "loops"],
        cwd=ROOT,
        env=environment({"database_url": migrated_url}),
        stderr=subprocess.PIPE,
        text=True,
    ) as loops:
        assert loops.stderr is not None
        assert "loops" in loops.stderr.readline()
        loops.send_signal(signal.SIGTERM)
        assert loops.wait(20) == 0


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_a_job_is_promoted_by_loops_beside_a_service_without_sweeps(migrated_url: str) -> None:
    with ServiceProcess(migrated_url, "--no-loops") as service:
        job = service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": 1, "delay_seconds": 0.1}, 201)
        with subprocess.Popen(
            [sys.executable, "-m", "app", "loops"], cwd=ROOT, env=environment({"database_url": migrated_url})
        ) as loops:
            (claimed,) = service.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w", "wait_seconds": 30}, 200)[
                "jobs"
            ]
            assert claimed["id"] == job["id"]
            loops.send_signal(signal.SIGTERM)
            assert loops.wait(20) == 0


def test_the_healthcheck_asks_the_service_that_its_environment_describes(migrated_url: str) -> None:
    with ServiceProcess(migrated_url) as service:
        port = service.url.rsplit(":", 1)[1]
        for where in ({"url": service.url}, {"port": port}, {"port": port, "host": "0.0.0.0"}):
            assert run_tenure("healthcheck", **where).returncode == 0
        assert run_tenure("healthcheck", "--live", url=service.url).returncode == 0
        service.kill()
        away = run_tenure("healthcheck", url=service.url)
        assert (away.returncode, away.stdout) == (6, "")


def test_the_service_ends_in_good_order_on_a_signal_that_comes_right_after_its_start(migrated_url: str) -> None:
    with ServiceProcess(migrated_url) as service:
        eventually(lambda: "listens" in service.log())
        assert service.terminate() == 0


@pytest.mark.engines("mariadb")
def test_serve_refuses_a_schema_that_was_taken_back(fresh_migrated_url: str) -> None:
    migrate.downgrade(fresh_migrated_url, revision="-1")
    result = run_tenure("serve", "--port", "0", database_url=fresh_migrated_url)
    assert result.returncode == 3
    assert "the database schema is behind" in refusal(result)
