"""`tenure keys` as a process: over HTTP and on the database itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.process import ServiceProcess, eventually, run_tenure

# a skin over verbs that are tested on every engine: an embedded database and a server are enough for what is its own
pytestmark = pytest.mark.engines("sqlite", "mariadb")

CREATE = ("keys", "create", "--name", "somebody")


def made(result: subprocess.CompletedProcess[str]) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def admin_key(migrated_url: str) -> str:
    """The first key, made on the database before any service runs."""
    result = run_tenure("keys", "create", "--direct", "--name", "first", "--role", "admin", database_url=migrated_url)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture
def service(migrated_url: str, admin_key: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(migrated_url) as running:
        yield running


def status(service: ServiceProcess, key: str | None) -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.get(f"{service.url}/v1/jobs", headers=headers, trust_env=False, timeout=30).status_code


def test_the_secret_stands_alone_on_the_standard_output(migrated_url: str) -> None:
    result = run_tenure(*CREATE, "--direct", "--role", "admin", "--expires-in", "30d", database_url=migrated_url)
    assert result.returncode == 0
    (line,) = result.stdout.splitlines()
    assert line.startswith("tnr_")
    assert line not in result.stderr
    assert "not shown again" in result.stderr


def test_a_key_made_directly_is_honoured_by_the_service_that_starts_after_it(
    service: ServiceProcess, admin_key: str
) -> None:
    assert status(service, admin_key) == 200
    assert status(service, None) == 401
    assert "There is no API key yet" not in service.log()


def test_a_key_is_made_listed_and_revoked_over_http(service: ServiceProcess, admin_key: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{admin_key}\n")
    where = {"url": service.url, "api_key_file": file}
    options = ("--role", "viewer", "--pattern", "billing.*", "--pattern", "mail", "--expires-in", "12h", "--json")
    key = made(run_tenure(*CREATE, *options, **where))
    assert (key["roles"], key["patterns"], key["revoked_at"]) == (["viewer"], ["billing.*", "mail"], None)
    assert key["expires_at"] > key["created_at"]
    assert status(service, key["key"]) == 200
    listed = run_tenure("keys", "list", **where)
    heading, newest, oldest = listed.stdout.splitlines()
    assert heading.split("\t")[:2] == ["id", "name"]
    assert newest.split("\t")[:5] == [key["id"], "somebody", "viewer", "billing.*, mail", "in force"]
    assert oldest.split("\t")[1] == "first"
    assert key["key"] not in listed.stdout
    assert run_tenure("keys", "revoke", key["id"], **where).returncode == 0
    assert status(service, key["key"]) == 401
    again = made(run_tenure("keys", "revoke", key["id"], "--json", **where))
    assert again["replayed"]
    assert made(run_tenure("keys", "list", "--json", **where))["items"][0]["revoked_at"] is not None


def test_exit_codes_over_http_tell_what_went_wrong(service: ServiceProcess, admin_key: str) -> None:
    where = {"url": service.url, "api_key": admin_key}
    viewer = made(run_tenure(*CREATE, "--role", "viewer", "--json", **where))["key"]
    missing = run_tenure("keys", "revoke", "000000000000", "--json", **where)
    assert (missing.returncode, json.loads(missing.stdout)["code"]) == (3, "not_found")
    assert missing.stderr.startswith("tenure: not_found")
    assert run_tenure("keys", "list", url=service.url).returncode == 5
    assert run_tenure("keys", "list", url=service.url, api_key=viewer).returncode == 5
    assert run_tenure(*CREATE, "--role", "viewer", "--pattern", "no spaces", **where).returncode == 2
    assert run_tenure("keys", "list", url="http://127.0.0.1:9").returncode == 6
    assert run_tenure("keys", "list", url="ftp://nowhere").returncode == 2
    both = run_tenure("keys", "list", url=service.url, api_key="x", api_key_file="y")
    assert (both.returncode, "not both" in both.stderr) == (2, True)


@pytest.mark.engines("sqlite")  # which database is not even looked at
def test_a_malformed_age_exits_2_and_touches_nothing(migrated_url: str) -> None:
    for age in ("30", "d", "30x", "30 d", "-1d", "1.5h", "0s", "99999999999d", "٣d"):
        wrong = run_tenure(*CREATE, "--direct", "--role", "admin", f"--expires-in={age}", database_url=migrated_url)
        assert (wrong.returncode, wrong.stdout) == (2, ""), age
        assert "--expires-in" in wrong.stderr
    assert made(run_tenure("keys", "list", "--direct", "--json", database_url=migrated_url))["items"] == []


def test_keys_are_listed_and_revoked_directly(migrated_url: str, admin_key: str) -> None:
    (first,) = made(run_tenure("keys", "list", "--direct", "--json", database_url=migrated_url))["items"]
    assert first["id"] in admin_key
    revoked = made(run_tenure("keys", "revoke", first["id"], "--direct", "--json", database_url=migrated_url))
    assert (revoked["id"], revoked["replayed"]) == (first["id"], False)
    missing = run_tenure("keys", "revoke", "000000000000", "--direct", "--json", database_url=migrated_url)
    assert (missing.returncode, json.loads(missing.stdout)["code"]) == (3, "not_found")


def test_the_first_key_must_be_an_admins(migrated_url: str) -> None:
    refused = run_tenure(*CREATE, "--direct", "--role", "worker", database_url=migrated_url)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "admin" in refused.stderr


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_direct_on_a_schema_that_was_never_migrated_exits_3(database_url: str) -> None:
    refused = run_tenure(*CREATE, "--direct", "--role", "admin", database_url=database_url)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "tenure migrate" in refused.stderr


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_a_key_made_directly_beside_a_running_service_is_in_force_within_3_seconds(migrated_url: str) -> None:
    with ServiceProcess(migrated_url) as service:
        assert status(service, None) == 200
        key = made(run_tenure(*CREATE, "--direct", "--role", "admin", "--json", database_url=migrated_url))["key"]
        eventually(lambda: status(service, None) == 401, 3, "the door is shut")
        assert status(service, key) == 200
