"""The encryption key that an embedded installation makes for itself."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.e2e.process import ServiceProcess, run_tenure

pytestmark = pytest.mark.engines("sqlite")
SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
DELIVERY = {"mode": "http", "url": "https://hooks.example.org/", "signing_secret": SECRET}


def key_file(url: str) -> Path:
    return Path(f"{make_url(url).database}.key")


def test_a_secret_can_be_stored_without_any_setting_and_is_read_again_after_a_restart(migrated_url: str) -> None:
    service = ServiceProcess(migrated_url)
    try:
        service.start()
        made = service.put("/v1/outbox/destinations/d", {"delivery": DELIVERY}, 201)
        assert made["delivery"]["signed"]
        key = key_file(migrated_url)
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        before = key.read_text()
        assert len(base64.b64decode(before)) == 32
        assert [one.name for one in key.parent.glob("*.key*")] == [key.name]
        service.terminate()
        service.start()
        assert key.read_text() == before
        kept = {name: value for name, value in DELIVERY.items() if name != "signing_secret"}
        again = service.put("/v1/outbox/destinations/d", {"delivery": kept}, 200)
        assert (again["replayed"], again["delivery"]["signed"]) == (True, True)
    finally:
        service.close()


def test_a_file_that_holds_no_key_is_told_in_one_line_and_left_as_it_is(migrated_url: str) -> None:
    for content in ("", "nonsense", "ü"):
        key_file(migrated_url).write_text(content)
        told = run_tenure("serve", "--port", "0", database_url=migrated_url)
        assert told.returncode == 2
        assert "holds no encryption key" in told.stderr
        assert "Traceback" not in told.stderr
        assert key_file(migrated_url).read_text() == content


def test_a_key_that_is_set_is_the_one_that_counts(migrated_url: str) -> None:
    key = base64.b64encode(b"s" * 32).decode()
    with ServiceProcess(migrated_url, encryption_keys=key) as service:
        service.put("/v1/outbox/destinations/d", {"delivery": DELIVERY}, 201)
    assert not key_file(migrated_url).exists()
