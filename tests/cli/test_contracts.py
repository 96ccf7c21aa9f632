"""`tenure contracts` as a process: real folders in three formats, odd files, the ledger, and a service to register with."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.primitives.contracts.model.schema import manifest_schema
from tests.e2e.process import ServiceProcess, run_tenure
from tests.primitives.contracts.promises import GOOD, REASON, exempt, good

BASELINE = "tenure-contracts-baseline.json"

YAML = """\
# shared parts may be written once
contracts:
  - type: invoice.send
    retry: &five {max_attempts: 5}
    backoff_seconds: [10, 60]
    timeout_seconds: 45
    terminal_handler:
      enqueue: {queue: billing, type: invoice.failed}
  - type: invoice.print
    schema_version: 2
    retry: *five
    backoff_seconds: [10, 60]
    timeout_seconds: 45
excluded:
  - type: mail.send
    reason: The mail gateway queues, retries and reports bounces by itself.
"""

TOML = f"""\
[[contracts]]
type = "invoice.send"
timeout_seconds = 45
backoff_seconds = [10, 60]
retry = {{ max_attempts = 5 }}
terminal_handler = {{ enqueue = {{ queue = "billing", type = "invoice.failed" }} }}

[[contracts]]
type = "invoice.print"
schema_version = 2
timeout_seconds = 45
backoff_seconds = [10, 60]
retry = {{ max_attempts = 5 }}

[[contracts.exemptions]]
rule = "QUEUE001"
reason = "{REASON}"
expires_on = 2031-12-31

[[excluded]]
type = "mail.send"
reason = "The mail gateway queues, retries and reports bounces by itself."
"""

JSON = json.dumps(
    {
        "$schema": "../contracts.schema.json",
        "contracts": [
            {"type": "invoice.send", **GOOD},
            {"type": "invoice.print", "schema_version": 2, **good(terminal_handler=None)},
        ],
        "excluded": [{"type": "mail.send", "reason": REASON}],
    },
    indent="\t",
)
FORMATS = {"tenure-contracts.yaml": (YAML, 9), "tenure-contracts.toml": (TOML, 8), "jobs.contracts.json": (JSON, 23)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


def write(root: Path, name: str, content: str | bytes | dict[str, Any]) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content) if isinstance(content, dict) else content
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def declared(*contracts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"contracts": list(contracts), **more}


def check(root: Path, *arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return run_tenure("contracts", "check", "--root", str(root), *arguments, **settings)


def told(root: Path, *arguments: str, code: int | None = None, **settings: Any) -> Any:
    result = check(root, "--format", "json", *arguments, **settings)
    assert "Traceback" not in result.stderr
    assert code is None or result.returncode == code, result.stderr + result.stdout
    return json.loads(result.stdout)


def ids(findings: list[dict[str, Any]]) -> list[str]:
    return [finding["id"] for finding in findings]


# -- reading ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_three_formats_say_the_same_and_findings_have_their_lines(root: Path, name: str) -> None:
    text, line = FORMATS[name]
    write(root, f"deep/down/{name}", text)
    found = told(root, code=2)
    (finding,) = found["new"]
    assert (finding["id"], finding["line"]) == (f"deep/down/{name}::invoice.print@2::QUEUE003", line)
    assert [one["type"] for one in found["excluded"]] == ["mail.send"]
    assert found["counts"]["contracts"] == 2


def test_a_clean_repository_and_an_empty_one_are_fine(root: Path) -> None:
    assert told(root, code=0)["counts"]["contracts"] == 0
    write(root, "tenure-contracts.json", declared({"type": "a", **GOOD}))
    assert told(root, code=0)["ok"] is True


def test_a_check_that_looks_at_nothing_does_not_pass_for_a_good_one(root: Path) -> None:
    """A misspelt name or path would else be green for ever."""
    write(root, "jobs/tenure-contract.yaml", "contracts: []\n")
    write(root, "jobs/contracts.yml", "contracts: []\n")
    write(root, "jobs/other.yaml", "a: 1\n")
    whole = check(root)
    assert whole.returncode == 0
    for name in ("jobs/tenure-contract.yaml", "jobs/contracts.yml"):
        assert f"{name} is not read as a manifest" in whole.stderr
    assert "other.yaml" not in whole.stderr
    assert "there is no manifest below" in whole.stderr
    part = check(root, str(root / "jobs"))
    assert part.returncode == 2
    assert "tenure-contracts.yaml" in part.stderr
    write(root, "jobs/billing.contracts.yaml", "contracts: []\n")
    assert check(root, str(root / "jobs")).returncode == 0


def test_no_server_no_database_and_no_setting_is_needed(root: Path) -> None:
    write(root, "tenure-contracts.json", declared({"type": "a", **GOOD}))
    assert check(root, database_url="postgresql+psycopg://nobody@127.0.0.1:1/none").returncode == 0


def test_folders_that_are_hidden_or_not_ours_are_skipped_and_other_files_too(root: Path) -> None:
    bad = declared({"type": "a"})
    for name in (
        ".git/tenure-contracts.json", "node_modules/x/tenure-contracts.json", "a/vendor/tenure-contracts.json",
        "venv/tenure-contracts.json", "contracts.json", "my-tenure-contracts.yaml.bak", ".contracts.json",
    ):  # fmt: skip
        write(root, name, bad)
    assert told(root, code=0)["counts"]["contracts"] == 0
    write(root, "a/billing.contracts.json", bad)
    assert told(root, code=2)["counts"]["contracts"] == 1


def test_a_file_that_is_named_is_read_whatever_it_is_called(root: Path) -> None:
    path = write(root, "odd.json", declared({"type": "a", **GOOD}))
    assert told(root, str(path), code=0)["counts"]["contracts"] == 1
    for wrong in (write(root, "odd.txt", "x"), root / "missing.json", Path("/")):
        result = check(root, str(wrong))
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

ODD: list[tuple[str, bytes, int, str]] = [
    ("tenure-contracts.yaml", b"", 1, "is empty"),
    ("tenure-contracts.json", b" \n", 1, "is empty"),
    ("tenure-contracts.toml", b"\n", 1, "is empty"),
    ("tenure-contracts.yaml", b"# nothing\n", 1, "is empty"),
    ("tenure-contracts.yaml", BOMB.encode(), 1, "aliases"),
    ("tenure-contracts.yaml", b"contracts: &c [*c]\n", 1, "alias"),
    ("tenure-contracts.yaml", b"contracts: [\n" + b"[" * 5000, 1, "nested"),
    ("tenure-contracts.json", b'{"contracts":' + b"[" * 5000 + b"]" * 5000 + b"}", 1, "nested"),
    ("tenure-contracts.toml", b"contracts = " + b"[" * 5000 + b"]" * 5000, 1, "nested"),
    ("tenure-contracts.yaml", b"contracts:\n  - type: a\0b\n", 2, "character"),
    ("tenure-contracts.toml", b'[[contracts]]\ntype = "a\0b"\n', 2, "TOML"),
    ("tenure-contracts.json", b'{"contracts":\n[{"type":"a\0"}]}', 2, "JSON"),
    ("tenure-contracts.yaml", b"contracts:\n  - type: caf\xe9\n", 2, "UTF-8"),
    ("tenure-contracts.json", b"x" * (1024 * 1024 + 1), 1, "bytes"),
    ("tenure-contracts.yaml", b"contracts:\n  - type: a\n    type: b\n", 3, "key twice"),
    ("tenure-contracts.yaml", b"contracts:\n  - !!python/object/apply:os.system [id]\n", 2, "tag"),
    ("tenure-contracts.yaml", b"contracts:\n  - type: !secret a\n", 2, "tag"),
    ("tenure-contracts.yaml", b"contracts:\n  - 1: a\n", 2, "key that is no text"),
    ("tenure-contracts.yaml", b"contracts:\n  - type: a\n    timeout_seconds: .inf\n", 1, "JSON cannot tell"),
    ("tenure-contracts.yaml", b"contracts:\n  - type: a\n--- \ncontracts: []\n", 3, "YAML"),
    ("tenure-contracts.yaml", b"contracts:\n  - type: a\n\tretry: {}\n", 3, "YAML"),
    ("tenure-contracts.yaml", b"- type: a\n", 1, "must be an object"),
    ("tenure-contracts.json", b'"text"', 1, "must be an object"),
    ("tenure-contracts.json", b'{"contracts":\n  {}}', 1, "must be a list"),
    ("tenure-contracts.yaml", b"contracts:\n  - type: a\n    gate: x\n", 3, "/contracts/0/gate is not a known field"),
    ("tenure-contracts.yaml", b"contracts:\n  - type: a\n    retry: {max_attempts: five}\n", 3, "must be an integer"),
    ("tenure-contracts.yaml", b"contracts:\n  - type: yes\n", 2, "must be a string"),
    ("tenure-contracts.yaml", b"contracts:\n  - type: a\n    file: x\n", 2, "is not for a file to say"),
    ("tenure-contracts.toml", b"[[contracts]]\ntype = 1\n", 1, "must be a string"),
    ("tenure-contracts.toml", b"[[contracts]\n", 1, "TOML"),
    ("tenure-contracts.json", b'{"contracts": [\n {"type": "a"},\n]}', 3, "JSON"),
    ("tenure-contracts.json", b'{"contracts": [{"type": "a", "payload_schema": {"type": 7}}]}', 1, "payload_schema"),
    (
        "tenure-contracts.yaml",
        b"contracts:\n- type: a\n  terminal_handler: {outbox: {destination: d}}\n",
        3,
        "terminal_handler",
    ),
]


def test_every_odd_file_is_told_with_its_line_and_nothing_breaks(root: Path) -> None:
    for number, (name, content, _, _) in enumerate(ODD):
        write(root, f"{number:02}/{name}", content)
    write(root, "fine/tenure-contracts.json", declared({"type": "fine", **GOOD}))
    found = told(root, code=2)
    assert (found["ok"], found["new"], found["counts"]["contracts"]) == (False, [], 1)
    seen = {one["file"]: one for one in found["malformed"]}
    for number, (name, _, line, detail) in enumerate(ODD):
        one = seen[f"{number:02}/{name}"]
        assert (one["line"], detail in one["detail"]) == (line, True), one
    assert len(found["malformed"]) == len(ODD)


def test_links_that_lead_in_circles_or_nowhere_end_nothing(root: Path) -> None:
    write(root, "real/tenure-contracts.json", declared({"type": "a", **GOOD}))
    (root / "real" / "loop").symlink_to(root, target_is_directory=True)
    (root / "again").symlink_to(root / "real", target_is_directory=True)
    assert told(root, code=0)["counts"]["contracts"] == 1
    (root / "self.contracts.yaml").symlink_to("self.contracts.yaml")
    (root / "gone.contracts.yaml").symlink_to("nowhere")
    found = told(root, code=2)
    assert [one["file"] for one in found["malformed"]] == ["gone.contracts.yaml", "self.contracts.yaml"]


def test_one_type_and_version_in_two_files_is_an_error_that_names_both(root: Path) -> None:
    write(root, "a.contracts.yaml", "contracts:\n- type: t\n- type: u\n")
    write(root, "b.contracts.yaml", "contracts:\n- type: x\n- type: t\nexcluded:\n- type: u\n  reason: " + REASON)
    found = told(root, code=2)
    assert [(one["file"], one["line"]) for one in found["malformed"]] == [
        ("a.contracts.yaml", 3),
        ("b.contracts.yaml", 3),
    ]
    assert "b.contracts.yaml:5" in found["malformed"][0]["detail"]
    assert "a.contracts.yaml:2" in found["malformed"][1]["detail"]


# -- judging ---------------------------------------------------------------------------------------------------------------


def test_poor_reasons_are_findings_and_real_ones_are_reported(root: Path) -> None:
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
    write(root, "tenure-contracts.json", declared(
        {"type": "a", **good(terminal_handler=None, exemptions=[exempt("QUEUE003", "this was quicker")])},
        {"type": "b", **good(terminal_handler=None, exemptions=[exempt("QUEUE003", expires_on=yesterday)])},
        {"type": "c", **good(terminal_handler=None, exemptions=[exempt("QUEUE003", expires_on=tomorrow)])},
        excluded=[{"type": "sms", "reason": "n/a"}],
    ))  # fmt: skip
    found = told(root, code=2)
    assert ids(found["new"]) == [
        f"tenure-contracts.json::{one}" for one in ("a@1::QUEUE003", "b@1::QUEUE003", "sms@*::QUEUE001")
    ]
    assert ids(found["exempted"]) == ["tenure-contracts.json::c@1::QUEUE003"]


def test_the_settings_of_the_environment_count(root: Path) -> None:
    write(root, "tenure-contracts.json", declared({"type": "a", **good(timeout_seconds=90)}))
    assert ids(told(root, code=2)["new"]) == ["tenure-contracts.json::a@1::QUEUE007"]
    assert told(root, code=0, jobs_lease_seconds=100)["ok"] is True


def test_text_is_a_table_with_places_and_what_to_do(root: Path) -> None:
    write(root, "tenure-contracts.yaml", YAML)
    result = check(root)
    heading, row = result.stdout.splitlines()
    assert heading.split("\t") == ["standing", "where", "contract", "rule", "what is wrong"]
    assert row.split("\t")[:4] == ["new", "tenure-contracts.yaml:9", "invoice.print@2", "QUEUE003"]
    assert "QUEUE003: Name in `terminal_handler`" in result.stderr
    assert "1 new, 0 known, 0 paid, 0 exempted, 1 excluded, 0 malformed" in result.stderr


def test_annotations_are_escaped_so_that_no_name_breaks_out_of_them(root: Path) -> None:
    write(
        root, "a,b%c:d::error::e.contracts.yaml", "contracts:\n- {type: t, backoff_seconds: [1], timeout_seconds: 90}\n"
    )
    result = check(root, "--format", "github")
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    for line, rule in zip(lines, ("QUEUE001", "QUEUE003", "QUEUE007"), strict=True):
        place = "a%2Cb%25c%3Ad%3A%3Aerror%3A%3Ae.contracts.yaml"
        assert line.startswith(f"::error file={place},line=2,title={rule} t@1 (new)::")


def test_a_name_that_cannot_be_printed_is_malformed_and_told_escaped(root: Path) -> None:
    write(root, "a\n::error::b.contracts.yaml", "contracts: []\n")
    (root / os.fsdecode(b"caf\xe9.contracts.yaml")).write_text("contracts: []\n")
    result = check(root, "--format", "github")
    assert result.returncode == 2
    assert len(result.stdout.splitlines()) == 2
    assert all("cannot be printed" in line for line in result.stdout.splitlines())


def test_a_path_that_no_ledger_can_hold_is_malformed(root: Path) -> None:
    folders = "/".join(["d" * 200] * 2)
    write(root, f"{folders}/tenure-contracts.json", declared({"type": "a"}))
    (bad,) = told(root, "--update", "--accept-new", REASON, code=2)["malformed"]
    assert "400 characters" in bad["detail"]


# -- the ledger ------------------------------------------------------------------------------------------------------------


def owing(root: Path, *types: str, name: str = "tenure-contracts.json") -> None:
    write(root, name, declared(*({"type": one, **good(terminal_handler=None)} for one in types)))


def ledger(root: Path) -> list[dict[str, Any]]:
    return list(json.loads((root / BASELINE).read_text())["debt"])


def test_the_ledger_grows_only_for_a_real_reason_which_it_keeps(root: Path) -> None:
    owing(root, "b", "a")
    refused = check(root, "--update")
    assert refused.returncode == 2
    assert "would grow by 2" in refused.stderr
    for excuse in ("legacy", "", "the gate complained"):
        assert check(root, "--update", "--accept-new", excuse).returncode == 2
    assert check(root, "--accept-new", REASON).returncode == 2, "without --update it would be in vain"
    assert not (root / BASELINE).exists()
    found = told(root, "--update", "--accept-new", REASON, code=0)
    assert (found["new"], len(found["known"])) == ([], 2)
    today = datetime.now(UTC).date()
    assert ids(ledger(root)) == [f"tenure-contracts.json::{one}@1::QUEUE003" for one in "ab"]
    assert {debt["reason"] for debt in ledger(root)} == {REASON}
    assert {debt["since"] for debt in ledger(root)} <= {str(today), str(today - timedelta(days=1))}
    lines = (root / BASELINE).read_text().splitlines()
    assert sum("::QUEUE003" in line for line in lines) == 2, "one on a line"
    assert told(root, code=0)["ok"] is True


def test_what_is_new_fails_beside_what_is_known(root: Path) -> None:
    owing(root, "a")
    told(root, "--update", "--accept-new", REASON, code=0)
    owing(root, "a", "b")
    found = told(root, code=2)
    assert (ids(found["new"]), ids(found["known"])) == (
        ["tenure-contracts.json::b@1::QUEUE003"], ["tenure-contracts.json::a@1::QUEUE003"],
    )  # fmt: skip


def test_a_paid_debt_passes_fails_strictly_and_is_struck_off_by_update(root: Path) -> None:
    owing(root, "a", "b")
    told(root, "--update", "--accept-new", REASON, code=0)
    before = ledger(root)
    owing(root, "a")
    assert told(root, code=0)["paid"] == ["tenure-contracts.json::b@1::QUEUE003"]
    assert told(root, "--strict", code=2)["ok"] is False
    assert "::error file=" in check(root, "--strict", "--format", "github").stdout
    assert told(root, "--update", "--strict", code=0)["paid"] == []
    assert ledger(root) == before[:1], "what stays keeps its day and its reason"


def test_a_run_over_a_part_neither_pays_nor_forgets_the_debt_of_the_rest(root: Path) -> None:
    owing(root, "a", name="one/tenure-contracts.json")
    owing(root, "b", name="two/tenure-contracts.json")
    told(root, "--update", "--accept-new", REASON, code=0)
    write(root, "one/tenure-contracts.json", declared({"type": "a", **GOOD}))
    found = told(root, str(root / "two"), "--strict", code=0)
    assert (found["paid"], len(found["known"])) == ([], 1)
    told(root, str(root / "one"), "--update", code=0)
    assert ids(ledger(root)) == ["two/tenure-contracts.json::b@1::QUEUE003"]


def test_a_malformed_manifest_keeps_the_ledger_as_it_is(root: Path) -> None:
    owing(root, "a")
    told(root, "--update", "--accept-new", REASON, code=0)
    before = (root / BASELINE).read_bytes()
    write(root, "tenure-contracts.json", "{")
    told(root, "--update", code=2)
    assert (root / BASELINE).read_bytes() == before


@pytest.mark.parametrize("content", [
    "{", "[]", '{"version": 2}', '{"version": 1, "debt": [{"id": "x"}]}', "\xff",
    '{"version":1,"debt":[{"id":"f::t@1::QUEUE001","since":"2026-13-01","reason":"r"}]}',
])  # fmt: skip
def test_a_malformed_ledger_ends_the_command(root: Path, content: str) -> None:
    write(root, BASELINE, content)
    result = check(root)
    assert result.returncode == 2
    assert "baseline" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_ledger_that_is_named_must_be_there(root: Path) -> None:
    assert check(root, "--baseline", str(root / "none.json")).returncode == 2
    owing(root, "a")
    other = root / "other.json"
    told(root, "--baseline", str(other), "--update", "--accept-new", REASON, code=0)
    told(root, "--baseline", str(other), code=0)
    told(root, code=2)


def test_a_ledger_that_cannot_be_written_is_told(root: Path) -> None:
    owing(root, "a")
    nowhere = str(root / "no such folder" / "ledger.json")
    result = check(root, "--update", "--accept-new", REASON, "--baseline", nowhere)
    assert result.returncode == 1
    assert "cannot be written" in result.stderr


# -- the schema ------------------------------------------------------------------------------------------------------------


def test_the_schema_is_printed_as_it_is_served() -> None:
    assert json.loads(run_tenure("contracts", "schema").stdout) == manifest_schema()


# -- a service -------------------------------------------------------------------------------------------------------------

# skins over routes that are tested on every engine
served = pytest.mark.engines("sqlite")


@pytest.fixture
def service(migrated_url: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(migrated_url) as running:
        yield running


def register(root: Path, service: ServiceProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_tenure("contracts", "register", "--root", str(root), *arguments, url=service.url)


@served
def test_manifests_are_registered_listed_and_may_be_registered_again(root: Path, service: ServiceProcess) -> None:
    write(root, "tenure-contracts.yaml", YAML)
    first = register(root, service, "--json")
    assert first.returncode == 0, first.stderr
    rows = [json.loads(line) for line in first.stdout.splitlines()]
    assert [(row["contract"], row["outcome"], row["answer"]["valid"]) for row in rows] == [
        ("invoice.send@1", "registered", True), ("invoice.print@2", "registered", False),
    ]  # fmt: skip
    again = register(root, service)
    assert [line.split("\t")[1] for line in again.stdout.splitlines()[1:]] == ["unchanged", "unchanged"]
    listed = run_tenure("contracts", "list", url=service.url)
    assert [line.split("\t")[:4] for line in listed.stdout.splitlines()[1:]] == [
        ["invoice.print", "2", "violated", "QUEUE003"], ["invoice.send", "1", "valid", "-"],
    ]  # fmt: skip
    assert len(json.loads(run_tenure("contracts", "list", "--json", url=service.url).stdout)["items"]) == 2


@served
def test_a_refused_contract_does_not_keep_the_others_back(root: Path, service: ServiceProcess) -> None:
    write(root, "tenure-contracts.json", declared(
        {"type": "a", **GOOD},
        {"type": "b", **good(exemptions=[exempt("QUEUE001", "todo")])},
        {"type": "c", **GOOD},
    ))  # fmt: skip
    result = register(root, service)
    assert result.returncode == 2
    assert "#/exemptions/0/reason" in result.stderr
    assert [line.split("\t")[1] for line in result.stdout.splitlines()[1:]] == ["registered", "failed", "registered"]


def test_nothing_is_registered_from_a_malformed_manifest_and_a_missing_service_is_told(root: Path) -> None:
    write(root, "a.contracts.json", declared({"type": "a", **GOOD}))
    away = run_tenure("contracts", "register", "--root", str(root), url="http://127.0.0.1:9")
    assert away.returncode == 6
    write(root, "b.contracts.json", "{")
    assert run_tenure("contracts", "register", "--root", str(root), url="http://127.0.0.1:9").returncode == 2


@served
def test_drift_is_shown_with_its_figures(service: ServiceProcess) -> None:
    service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": {}}, 201)
    (job,) = service.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w"}, 200)["jobs"]
    body = {"token": job["reservation"]["token"], "category": "broken", "retry": False}
    assert httpx.post(f"{service.url}/v1/jobs/{job['id']}/fail", json=body, trust_env=False).status_code == 200
    shown = run_tenure("contracts", "drift", "--hours", "1", url=service.url)
    assert shown.returncode == 0, shown.stderr
    (row,) = [line.split("\t") for line in shown.stdout.splitlines()[1:]]
    assert row[:4] == ["t", "1", "no_contract", "dead 1, attempts 1"]
    report = json.loads(run_tenure("contracts", "drift", "--json", url=service.url).stdout)
    assert [item["kind"] for item in report["items"]] == ["no_contract"]
