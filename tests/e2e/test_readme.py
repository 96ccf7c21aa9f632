"""Every example of the README works as it stands there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.process import ROOT, ServiceProcess, environment, eventually
from tests.e2e.producers import listed
from tests.tools import needs

README = (ROOT / "README.md").read_text()
DEFAULT_URL = "http://127.0.0.1:8080"
# every call of the tour must succeed, and its answer must be seen if it does not
STRICT = 'set -euo pipefail\ncurl() { command curl --silent --show-error --fail-with-body "$@"; }\n'


def blocks(heading: str, language: str) -> list[str]:
    """The fenced blocks of one section, in order."""
    section = README.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


@needs(shutil.which("curl"), "curl is not on this machine")
def test_the_tour_works_from_its_first_line_to_its_last(service: ServiceProcess) -> None:
    script = STRICT + "\n".join(blocks("A tour in five minutes", "sh")).replace(DEFAULT_URL, service.url)
    done = subprocess.run(
        ["bash", "-c", script], env=environment({}), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ('"percent"', '"state":"succeeded"', '"message_id"', "the mail server is down", '"paused":false'):
        assert said in done.stdout.replace(": ", ":") or said in done.stdout, said


@needs(shutil.which("curl"), "curl is not on this machine")
def test_the_round_of_a_message_works_as_it_stands(service: ServiceProcess) -> None:
    calls = "\n".join([f"tenure={service.url}", *blocks("Outbox", "sh")])
    done = subprocess.run(
        ["bash", "-c", STRICT + calls], env=environment({}), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (message,) = service.get("/v1/outbox/messages?message_key=order-123-submitted")["items"]
    assert (message["state"], message["provider_operation_id"]) == ("sent", "ch_81f2")


@needs(shutil.which("curl"), "curl is not on this machine")
@pytest.mark.parametrize(
    ("heading", "said"),
    [("Locks", '"current":true'), ("Idempotency", '"outcome":"replay"'), ("Cache", '"cleared":1')],
)
def test_the_rounds_of_the_small_primitives_work_as_they_stand(
    service: ServiceProcess, heading: str, said: str
) -> None:
    calls = "\n".join([f"tenure={service.url}", *blocks(heading, "sh")])
    done = subprocess.run(
        ["bash", "-c", STRICT + calls], env=environment({}), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout


@pytest.mark.parametrize(("language", "program"), [("python", sys.executable), ("js", "node")])
def test_the_short_worker_does_jobs_and_settles_them(
    service: ServiceProcess, tmp_path: Path, language: str, program: str
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on this machine")
    (source,) = blocks("A short worker", language)
    file = tmp_path / f"worker.{'mjs' if language == 'js' else 'py'}"
    file.write_text(source.replace(DEFAULT_URL, service.url))
    for name in ("ada", "bob", "eve"):
        service.post("/v1/jobs", {"queue": "mail", "type": "mail.send", "payload": {"to": name}}, 201)
    with subprocess.Popen([program, str(file)], stdout=subprocess.PIPE, text=True, env=environment({})) as worker:
        assert worker.stdout is not None
        assert [worker.stdout.readline() for _ in range(3)] == [f"a mail to {name}\n" for name in ("ada", "bob", "eve")]
        # its next claim waits for more work, and has settled these three on its way
        eventually(lambda: len(listed(service.url, queue="mail", state="succeeded")) == 3, what="all are settled")
        worker.kill()


def test_the_short_workers_are_short() -> None:
    for language in ("python", "js"):
        (source,) = blocks("A short worker", language)
        assert len(source.splitlines()) <= 32, language


def test_every_file_that_the_readme_links_to_is_there() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target
