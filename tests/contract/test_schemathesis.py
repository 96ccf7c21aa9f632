"""Machine-made requests against a live service: examples, the borders of every schema, and some at random.

Right and wrong ones, the same in every run. No answer may be a fault of the service's own; each must have a status, a media
type, headers and a body that the OpenAPI document declares; and what the document does not allow must be refused. That what
it allows is taken is not asked: some rules join several fields, and no schema says them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.process import ROOT, ServiceProcess, environment, run_tenure

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)
EXAMPLES_FOR_EACH_OPERATION = 10
LEAST_CASES = 1000  # fewer would mean that the key or the document was not understood
SECONDS = 240  # for a run that hangs; a whole one takes well under a minute


@pytest.mark.engines("sqlite")
def test_machine_made_requests_get_nothing_but_what_the_document_declares(migrated_url: str, tmp_path: Path) -> None:
    # with a key from the start: else a request at random would make the first one, and lock out those that follow
    made = run_tenure(
        "keys", "create", "--direct", "--json", "--name", "tester", "--role", "admin", database_url=migrated_url
    )
    key = json.loads(made.stdout)["key"]
    with ServiceProcess(migrated_url) as service:
        output = _run(service.url, key, tmp_path)
        failures = [line for line in service.log().splitlines() if '"request_failed"' in line or '"op_failed"' in line]
    generated = re.search(r"(\d+) generated", output)
    assert generated is not None, output[-4000:]
    assert int(generated[1]) >= LEAST_CASES, output[-4000:]
    assert not failures, failures[:3]


def _run(url: str, key: str, folder: Path) -> str:
    """Run Schemathesis to its end, and give what it printed; it must have found nothing."""
    run = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json",
            "--header", f"Authorization: Bearer {key}",
            "--phases", "examples,coverage,fuzzing",
            "--mode", "all",
            "--checks", ",".join(CHECKS),
            "--max-examples", str(EXAMPLES_FOR_EACH_OPERATION),
            "--generation-deterministic",
            "--continue-on-failure",
            "--request-timeout", "20",
            "--warnings", "off",
            "--no-color",
        ],
        cwd=folder,  # it keeps files of its own where it runs
        env={**environment({}), "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.contract.hooks"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-4000:]
    return run.stdout
