"""Settings: where they come from, and what is said of those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import settings
from app.errors import StartupProblem


def test_a_misspelt_setting_is_named_with_the_nearest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_PORTT", "1")
    monkeypatch.setenv("TENURE_API_KEY", "for the commands")
    monkeypatch.setenv("TENURE_DATABASE_URL_FILE", "/run/secrets/url")
    assert settings.unknown() == ["there is no setting TENURE_PORTT; did you mean TENURE_PORT?"]


def test_a_secret_may_come_from_a_file_and_not_from_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("sqlite:////tmp/x.db\n")
    monkeypatch.setenv("TENURE_DATABASE_URL_FILE", str(file))
    assert settings.load().database_url.get_secret_value() == "sqlite:////tmp/x.db"
    monkeypatch.setenv("TENURE_DATABASE_URL", "sqlite:////tmp/y.db")
    with pytest.raises(StartupProblem, match="not both"):
        settings.load()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "70000"),
        ("PORT", "x"),
        ("JOBS_BACKOFF_SECONDS", "[]"),
        ("TABLE_PREFIX", "Drop;"),
        ("LOG_LEVEL", "loud"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it_and_not_its_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"TENURE_{name}", value)
    with pytest.raises(StartupProblem) as wrong:
        settings.load()
    assert str(wrong.value).startswith(f"setting TENURE_{name} is wrong: ")
    assert "\n" not in str(wrong.value)
    assert wrong.value.exit_code == 2
