"""`tenure check`, `migrate`, `openapi` and the command line itself, as processes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts import settings_page
from tests.e2e.process import ROOT, ServiceProcess, run_tenure
from tests.servers import Server
from tests.servers.mysql_family import MySQLFamily


def checked(database_url: str) -> tuple[int, dict[str, dict[str, Any]]]:
    result = run_tenure("check", "--json", database_url=database_url)
    return result.returncode, {one["name"]: one for one in json.loads(result.stdout)["checks"]}


def test_a_good_installation_passes_every_check(engine_name: str, migrated_url: str) -> None:
    code, checks = checked(migrated_url)
    allowed = {"durable_binlog"} if engine_name == "mysql" else set()  # the test's server may do without it
    assert {name for name, one in checks.items() if one["status"] != "pass"} <= allowed, checks
    assert code in (0, 7)
    assert {"settings", "database", "schema", "skip_locked", "durable_commit", "connections", "clock_offset"} <= set(
        checks
    )
    assert engine_name in str(checks["database"]["figure"])


@pytest.mark.engines("sqlite")
def test_the_table_is_lines_with_tabs_in_a_pipe(migrated_url: str) -> None:
    lines = run_tenure("check", database_url=migrated_url).stdout.splitlines()
    assert lines[0].split("\t") == ["check", "status", "figure", "what was seen"]
    assert lines[1].split("\t")[:2] == ["settings", "pass"]


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_a_schema_that_was_never_migrated_is_found(database_url: str) -> None:
    code, checks = checked(database_url)
    assert (code, checks["schema"]["status"], checks["schema"]["figure"]) == (7, "fail", "empty")


@pytest.mark.engines("mariadb", "mysql")
def test_lost_durability_and_a_foreign_table_engine_are_found(faulty_server: Server, fresh_migrated_url: str) -> None:
    assert isinstance(faulty_server, MySQLFamily)
    database = fresh_migrated_url.rsplit("/", 1)[1]
    faulty_server.execute(f"ALTER TABLE {database}.tenure_job_progress ENGINE=MyISAM")
    faulty_server.execute("SET GLOBAL innodb_flush_log_at_trx_commit=2")
    try:
        code, checks = checked(fresh_migrated_url)
    finally:
        faulty_server.execute("SET GLOBAL innodb_flush_log_at_trx_commit=1")
    assert code == 7
    assert (checks["durable_commit"]["status"], checks["table_engine"]["status"]) == ("fail", "fail")
    assert checks["table_engine"]["seen"] == "tenure_job_progress is MyISAM"


@pytest.mark.engines("mariadb", "mysql")
def test_too_few_connections_are_found(faulty_server: Server, migrated_url: str) -> None:
    assert isinstance(faulty_server, MySQLFamily)
    faulty_server.execute("SET GLOBAL max_connections=10")
    try:
        code, checks = checked(migrated_url)
    finally:
        faulty_server.execute("SET GLOBAL max_connections=500")
    assert (code, checks["connections"]["status"]) == (7, "fail")


def test_no_database_is_exit_6_and_a_wrong_setting_is_exit_2() -> None:
    away = run_tenure("check", database_url="mysql+pymysql://u:p@127.0.0.1:9/x")
    assert (away.returncode, away.stdout) == (6, "")
    assert run_tenure("check", port="x").returncode == 2


@pytest.mark.engines("sqlite")
def test_a_file_that_a_service_owns_is_exit_6(migrated_url: str) -> None:
    with ServiceProcess(migrated_url):
        assert run_tenure("check", database_url=migrated_url).returncode == 6


def test_migrate_brings_an_empty_database_up_and_says_where_it_stands(database_url: str) -> None:
    before = run_tenure("migrate", "--check", "--json", database_url=database_url)
    assert (before.returncode, json.loads(before.stdout)["state"]) == (3, "empty")
    done = run_tenure("migrate", "--json", database_url=database_url)
    assert (done.returncode, json.loads(done.stdout)["state"]) == (0, "current")
    assert run_tenure("migrate", "--check", database_url=database_url).returncode == 0


@pytest.mark.parametrize(("version", "says"), [("3.1", "3.1.0"), ("3.0", "3.0.3")])
def test_openapi_needs_no_database(version: str, says: str) -> None:
    result = run_tenure("openapi", "--version", version, database_url="mysql+pymysql://u:p@127.0.0.1:9/x")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["openapi"] == says


def test_help_lists_every_command_and_every_exit_code() -> None:
    shown = run_tenure("--help").stdout
    for name in ("serve", "loops", "migrate", "check", "keys", "healthcheck", "openapi"):
        assert f"  {name} " in shown
        assert run_tenure(name, "--help").returncode == 0
    assert "130 interrupted" in shown


def test_an_unknown_command_or_option_is_exit_2() -> None:
    assert run_tenure("nonsense").returncode == 2
    assert run_tenure("serve", "--nonsense").returncode == 2


def test_the_page_of_settings_is_fresh() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page.page(), "run `make docs/settings`"
