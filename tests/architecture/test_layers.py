"""The import contracts of pyproject.toml hold, and each of them refuses a module in the wrong place."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

WRONG = [
    ("A module imports from below only", "app/db/wrong.py", "import app.http"),
    ("A module imports from below only", "app/utils.py", ""),
    ("A module imports from below only", "app/outgoing/wrong.py", "import app.db"),
    ("SQL lives in db, store and tables", "app/runtime/wrong.py", "import sqlalchemy"),
    ("HTTP frameworks stay in main, http, routes", "app/primitives/jobs/ops/wrong.py", "import fastapi"),
    ("Calls leave the service from outgoing alone", "app/runtime/wrong.py", "import httpx"),
    ("Only a primitive's ops use its store", "app/primitives/jobs/routes/wrong.py", "import app.primitives.jobs.store"),
    ("Primitives do not know each other", "app/primitives/other/wrong.py", "import app.primitives.jobs.model"),
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the code that a test may spoil."""
    shutil.copytree(ROOT / "app", tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def _lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, env={"PYTHONPATH": "."})


def test_the_contracts_hold() -> None:
    result = _lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("contract", "path", "text"), WRONG)
def test_a_module_in_the_wrong_place_is_refused(copy: Path, contract: str, path: str, text: str) -> None:
    wrong = copy / path
    if not wrong.parent.exists():
        wrong.parent.mkdir()
        (wrong.parent / "__init__.py").touch()
    wrong.write_text(text)
    result = _lint_imports(copy)
    broken = [line for line in result.stdout.splitlines() if "BROKEN" in line]
    assert any(contract in line for line in broken), result.stdout + result.stderr
