"""docs/idempotency.md: each endpoint of the page works as it stands there, also when its work crashes or is wanted by many."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.docs.blocks import Block, blocks_of
from tests.docs.shop import node_modules
from tests.docs.test_outbox import CURL, NODE_ALONE, NPM, PHP, STRICT
from tests.e2e.process import ServiceProcess, environment, eventually

# examples of HTTP: which engine is behind the calls they cannot see
pytestmark = pytest.mark.engines("sqlite")
PAGE = "docs/idempotency.md"
BLOCKS = blocks_of(PAGE)
DEFAULT_URL = "http://127.0.0.1:8080"
SECONDS = 60.0

# `place_order` of the tests: each order that is placed is a line in a file; one with "wait" waits for a file to appear
PYTHON = """
import asyncio, json, pathlib, uvicorn
async def place_order(order):
    with open("effects", "a") as effects:
        effects.write(json.dumps(order) + "\\n")
    while "wait" in order and not pathlib.Path(order["wait"]).exists():
        await asyncio.sleep(0.01)
    if order.get("crash"):
        raise RuntimeError("crash")
    return {"order": order["number"], "name": "é"}
uvicorn.run(app, port=int(os.environ["PORT"]), log_level="error")
"""
NODE = """
import { appendFileSync, existsSync } from "node:fs";
async function placeOrder(order) {
  appendFileSync("effects", JSON.stringify(order) + "\\n");
  while (order.wait && !existsSync(order.wait)) await new Promise((go) => setTimeout(go, 10));
  if (order.crash) throw new Error("crash");
  return { order: order.number, name: "é" };
}
app.listen(Number(process.env.PORT), "127.0.0.1");
"""
PHP_TAIL = """
function place_order(object $order): array
{
    file_put_contents(__DIR__ . '/effects', json_encode($order) . "\\n", FILE_APPEND);
    while (isset($order->wait) && !file_exists(__DIR__ . '/' . $order->wait)) { clearstatcache(); usleep(10000); }
    if ($order->crash ?? false) { throw new RuntimeException('crash'); }
    return ['order' => $order->number, 'name' => 'é'];
}
"""


def block(word: str) -> Block:
    (found,) = (one for one in BLOCKS if word in one.words)
    return found


@dataclass
class Shop:
    """The endpoint of one example, as a process of its own."""

    url: str
    folder: Path
    service: ServiceProcess

    def order(self, key: str | None, **fields: Any) -> httpx.Response:
        headers = {} if key is None else {"idempotency-key": key}
        return httpx.post(f"{self.url}/orders", json=fields, headers=headers, timeout=SECONDS, trust_env=False)

    @property
    def effects(self) -> int:
        """How many orders were placed."""
        file = self.folder / "effects"
        return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0

    def answers(self) -> bool:
        try:
            httpx.get(self.url, timeout=5, trust_env=False)
        except httpx.TransportError:
            return False
        return True


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def fastapi(folder: Path, _port: int) -> list[str]:
    (folder / "example.py").write_text(block("fastapi").text + PYTHON, encoding="utf-8")
    return [sys.executable, "example.py"]


def express(folder: Path, _port: int) -> list[str]:
    (folder / "example.mjs").write_text(block("express").text + NODE, encoding="utf-8")
    (folder / "node_modules").symlink_to(node_modules())
    return ["node", "example.mjs"]


def php(folder: Path, port: int) -> list[str]:
    text = block("idempotent").text.replace("<?php\n", f"<?php\n{PHP_TAIL}", 1)
    (folder / "example.php").write_text(text, encoding="utf-8")
    return ["php", "-d", "display_errors=0", "-S", f"127.0.0.1:{port}", "example.php"]


@pytest.fixture
def service(migrated_url: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(migrated_url) as running:
        yield running


@pytest.fixture(
    params=[
        fastapi,
        pytest.param(express, marks=[NPM, NODE_ALONE]),
        pytest.param(php, marks=PHP),
    ]
)
def shop(request: pytest.FixtureRequest, service: ServiceProcess, tmp_path: Path) -> Iterator[Shop]:
    port, write = free_port(), request.param
    program: Callable[[Path, int], list[str]] = write
    settings = {"TENURE_URL": service.url, "PORT": port, "PHP_CLI_SERVER_WORKERS": 8}
    running = subprocess.Popen(
        program(tmp_path, port),
        cwd=tmp_path,
        env=environment(settings),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    one = Shop(f"http://127.0.0.1:{port}", tmp_path, service)
    try:
        eventually(lambda: running.poll() is not None or one.answers(), SECONDS, "the endpoint answers")
        yield one
    finally:
        running.kill()
        running.wait()


def test_the_same_request_is_done_once_and_answered_alike(shop: Shop) -> None:
    first, second = shop.order("k", number=1), shop.order("k", number=1)
    assert (first.status_code, first.json()) == (200, {"order": 1, "name": "é"})
    assert (second.status_code, second.json()) == (200, first.json())
    assert shop.effects == 1
    assert shop.order("k", number=2).status_code == 422
    assert shop.order(None, number=3).status_code == 422
    assert shop.effects == 1
    assert shop.order("other", number=1).status_code == 200
    assert shop.effects == 2


def test_of_many_at_once_one_does_it_and_all_get_its_result(shop: Shop) -> None:
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(shop.order, "k", number=7, wait="go") for _ in range(6)]
        eventually(lambda: shop.effects, SECONDS, "somebody is at work")
        (shop.folder / "go").touch()
        answers = [call.result() for call in calls]
    assert [(one.status_code, one.json()["order"]) for one in answers] == [(200, 7)] * 6
    assert shop.effects == 1


def test_what_crashed_is_not_done_again_until_somebody_has_found_out(shop: Shop) -> None:
    assert shop.order("k", number=1, crash=True).status_code == 500
    told = shop.order("k", number=1, crash=True)
    assert (told.status_code, told.json()["outcome"], told.json()["reason"]) == (409, "reconcile", "crashed")
    assert shop.effects == 1
    verdict = {"scope": "POST /orders", "key": "k", "verdict": "completed", "result": {"order": 1}, "evidence": "seen"}
    shop.service.post("/v1/idempotency/reconcile", verdict, 200)
    told = shop.order("k", number=1, crash=True)
    assert (told.status_code, told.json()) == (200, {"order": 1})
    assert shop.effects == 1


def test_while_tenure_is_away_nothing_is_done(shop: Shop) -> None:
    shop.service.kill()
    assert shop.order("k", number=1).status_code >= 500
    assert shop.effects == 0


@CURL
def test_the_calls_of_the_page(service: ServiceProcess, tmp_path: Path) -> None:
    assert shutil.which("bash")
    key = {"scope": "POST /orders", "key": "k-4711", "fingerprint": "f"}
    owned = service.post("/v1/idempotency/check", key, 200)
    doubt = {"scope": "POST /orders", "key": "k-4711", "token": owned["reservation"]["token"]}
    service.post("/v1/idempotency/unknown", doubt, 200)
    shell = [one.text for one in BLOCKS if one.language == "sh"]
    script = STRICT + "\n".join(shell).replace(DEFAULT_URL, service.url)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = service.post("/v1/idempotency/check", key, 200)
    assert (told["outcome"], told["result"]) == ("replay", {"order": "o-17"})
    assert json.loads(done.stdout[: done.stdout.index("}{") + 1])["outcome"] == "acquired"
