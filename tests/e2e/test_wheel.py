"""What `pip install` of the wheel gives is all there: the command, the migrations, the pages; nothing of the checkout is used."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.e2e.process import COMMAND_SECONDS, ROOT, ServiceProcess, environment

CHECKOUT_IS_OUT_OF_REACH = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}


def run(program: Path | str, *arguments: str | Path, cwd: Path, settings: Mapping[str, str] | None = None) -> str:
    """Run to a good end, and give what was printed."""
    ended = subprocess.run(
        [str(program), *map(str, arguments)],
        cwd=cwd,
        env=environment({**CHECKOUT_IS_OUT_OF_REACH, **(settings or {})}),
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from this tree by the build tool of our lock, which asks no index."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the wheel, and the dependencies that this one has."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    options = ("install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, *options, wheel, cwd=folder)
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    # a folder that is named so is searched last, and its own .pth files, which lead to the checkout, are not read
    (Path(own) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def test_the_wheel_has_every_file_of_the_service_and_no_other(wheel: Path) -> None:
    def tree(folder: str, place: str) -> set[str]:
        files = [path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file()]
        return {f"{place}/{path}" for path in files if "__pycache__" not in path.parts}

    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == tree("app", "app") | tree("alembic", "app/migrations")


def test_the_installed_service_migrates_serves_and_runs_a_job(
    installed: Path, database_url: str, tmp_path: Path
) -> None:
    where = run(installed / "python", "-c", "import app; print(app.__file__)", cwd=tmp_path)
    assert where.startswith(str(installed.parent)), "it is the wheel's, and not the checkout's"
    run(installed / "tenure", "migrate", cwd=tmp_path, settings={"database_url": database_url})

    class Installed(ServiceProcess):
        program = (str(installed / "tenure"),)
        place = tmp_path

    with Installed(database_url, **CHECKOUT_IS_OUT_OF_REACH) as service:
        run(installed / "tenure", "healthcheck", "--url", service.url, cwd=tmp_path)
        job = service.post("/v1/jobs", {"queue": "q", "type": "t", "payload": 1}, 201)
        (held,) = service.post("/v1/jobs/claim", {"queues": ["q"], "worker": "w"}, 200)["jobs"]
        token = {"token": held["reservation"]["token"]}
        assert service.post(f"/v1/jobs/{job['id']}/complete", token, 200)["state"] == "succeeded"
        for page in ("docs", "docs/static/swagger-ui-bundle.js", "docs/static/page.css", "openapi.json", "llms.txt"):
            assert httpx.get(f"{service.url}/{page}", trust_env=False).status_code == 200, page
        assert service.get("/health")["version"] != "0", "it knows its release"
        assert service.terminate() == 0
