"""`make demo` ends well: each job is done exactly once though a worker is killed on the way."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.process import ROOT, environment


@pytest.mark.engines("sqlite", "mariadb")
def test_the_demo_ends_with_every_job_done_exactly_once(database_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--database-url", database_url],
        cwd=ROOT,
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "EQUAL" in done.stdout
    assert "with SIGKILL while it held" in done.stdout
