"""Logs: secrets are masked wherever they stand. And the canary: known secrets are looked for in everything that comes out."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from app import logs
from app.access import Role
from app.primitives.keys.model import mint
from tests.http.conftest import Service
from tests.http.test_requests import GOOD

KEY = mint().text
TOKEN = "A" * 40 + "-_" + "b" * 44
WEBHOOK = "whsec_" + "Ab+/" * 8


@pytest.mark.parametrize(("field", "value"), [
    ("authorization", "x"), ("Authorization", "x"), ("token", "x"), ("reservation_token", "x"), ("secret", "x"),
    ("signing_secret", "x"), ("password", "x"), ("passwd", "x"), ("dsn", "x"), ("database_url", "x"), ("api_key", "x"),
    ("cookie", "x"),
])  # fmt: skip
def test_a_field_that_names_a_secret_is_masked(field: str, value: str) -> None:
    assert logs.redact(None, "info", {"event": "e", field: value}) == {"event": "e", field: "***"}
    assert logs.redact(None, "info", {"event": "e", "x": {field: value}}) == {"event": "e", "x": {field: "***"}}


@pytest.mark.parametrize("text", [
    f"key {KEY} was used", f"Authorization: Bearer {KEY}", "Bearer abc.def", "mysql+pymysql://u:hunter2@db/x", f"token={TOKEN}",
    "postgresql://u:hunter2@db/x failed", f"['{TOKEN}']", f"signed with {WEBHOOK}",
], ids=lambda text: str(len(text)))  # fmt: skip
def test_a_secret_inside_a_text_is_masked(text: str) -> None:
    for event in (
        {"event": text},
        {"event": "e", "detail": text},
        {"event": "e", "x": [{"y": (text,)}]},
        {"event": "e", "exception": text},
    ):
        shown = str(logs.redact(None, "info", dict(event)))
        assert "***" in shown
        assert not any(secret in shown for secret in (KEY, TOKEN, WEBHOOK, "hunter2", "abc.def"))


def test_what_is_no_secret_stays() -> None:
    event = {
        "event": "e",
        "route": "/v1/jobs/{job_id}",
        "status": 200,
        "key_id": "abc",
        "detail": "a@b.example and 12:30",
    }
    assert logs.redact(None, "info", dict(event)) == event


@pytest.fixture
def written(capsysbinary: pytest.CaptureFixture[bytes]) -> Iterator[Callable[[], bytes]]:
    """Call it for what the process has written; the set-up of logs is put back afterwards."""
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers, root.level
    access = logging.getLogger("uvicorn.access")
    kept = access.handlers, access.propagate, access.disabled
    yield lambda: capsysbinary.readouterr().err
    root.handlers = handlers
    root.setLevel(level)
    access.handlers, access.propagate, access.disabled = kept
    structlog.configure(**before)


def test_a_line_is_one_json_object(written: Callable[[], bytes]) -> None:
    logs.set_up("info", "json")
    structlog.get_logger("t").info("something_happened", count=1, token="x", path=object)
    structlog.get_logger("t").debug("not_shown")
    try:
        int(KEY)
    except ValueError as error:
        structlog.get_logger("t").error("it_failed", exc_info=error)
    logging.getLogger("uvicorn.error").info("Started %s", "x")
    logging.getLogger("uvicorn.access").info("GET /")
    text = written()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["event"] for line in lines] == ["something_happened", "it_failed", "library_log"]
    assert (lines[0]["level"], lines[0]["token"], lines[0]["count"]) == ("info", "***", 1)
    assert "ValueError" in lines[1]["exception"]
    assert (lines[2]["logger"], lines[2]["message"]) == ("uvicorn.error", "Started x")
    assert KEY.encode() not in text


def test_a_console_line_is_for_people_and_masked_too(written: Callable[[], bytes]) -> None:
    logs.set_up("debug", "console")
    structlog.get_logger("t").info("something_happened", detail=f"Bearer {KEY}")
    local_secret = KEY
    try:
        int(local_secret)
    except ValueError as error:
        structlog.get_logger("t").error("it_failed", exc_info=error)
    text = written()
    assert b"something_happened" in text
    assert b"ValueError" in text
    assert KEY.encode() not in text


@pytest.mark.anyio
async def test_known_secrets_are_nowhere(service: Service, captured_logs: list[dict[str, Any]]) -> None:
    """Keys, tokens and a password go in through every door; nothing of them comes out but the one answer that shows a key."""
    admin = await service.key_of(Role.ADMIN)
    client = await service.client(admin, **{"X-Request-Id": "canary"})
    made = await client.post("/v1/api-keys", json={"name": "made", "roles": ["worker", "producer"]})
    key = made.json()["key"]
    canaries = [admin, key, admin.split("_")[2], key.split("_")[2], TOKEN, "hunter2-canary"]
    paths = ("/v1/api-keys", "/v1/audit", "/metrics", "/health", "/readyz", "/openapi.json", "/llms.txt", "/v1/nowhere")
    out = [(await client.get(path)).text for path in paths]
    worker = await service.client(key)
    bad = {"queue": TOKEN, "payload": 1, "priority": "hunter2-canary", "note": TOKEN}
    out += [
        (await worker.post("/v1/demo/echo", json=bad)).text,
        (
            await worker.post(
                "/v1/demo/echo", content=f"{{{key}".encode(), headers={"content-type": "application/json"}
            )
        ).text,
        (await worker.get("/v1/api-keys")).text,
        (await worker.get(f"/v1/demo/things/x?limit={key}")).text,
        (await worker.post("/v1/demo/fail")).text,
        (await (await service.client(key + "x")).post("/v1/demo/echo", json=GOOD)).text,
        (await client.get(f"/v1/nowhere/{key}?token={TOKEN}")).text,
        (await client.delete(f"/v1/api-keys/{key.split('_')[1]}")).text,
        (await worker.post("/v1/demo/echo", json=GOOD)).text,
        (await client.get("/metrics")).text,
        str(captured_logs),
    ]
    assert captured_logs
    for canary in canaries:
        assert not [text for text in out if canary in text], canary[:6]
