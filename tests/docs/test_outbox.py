"""docs/outbox.md: every example works as it stands there, as an account with the rights that the page gives."""

from __future__ import annotations

import base64
import json
import re
import secrets
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from app.clock import MICROS
from app.primitives.outbox.ops import guard
from app.primitives.outbox.tables import outbox, outbox_contents
from tests.docs.receiver import Received, Receiver
from tests.docs.shop import BLOCKS, NODE, PAGE, SERVER_NAMES, environment, run_program, run_sql, sql
from tests.e2e.process import ROOT, ServiceProcess, eventually
from tests.e2e.process import environment as clean
from tests.primitives.outbox.driving import Outbox
from tests.tools import needs

DEFAULT_URL = "http://127.0.0.1:8080"
DOCUMENTED_HOOK = "https://hooks.example.org/tenure"
# every call must succeed, and its answer must be seen if it does not
STRICT = 'set -euo pipefail\ncurl() { command curl --silent --show-error --fail-with-body "$@"; }\n'


def _php() -> str | None:
    """PHP with every driver that the examples are run with."""
    if shutil.which("php") is None:
        return None
    modules = subprocess.run(["php", "-m"], capture_output=True, text=True, check=True).stdout.split()
    return "php" if {"pdo_mysql", "pdo_pgsql", "pdo_sqlite"} <= set(modules) else None


PHP = needs(
    _php(), "no PHP with its database drivers; Debian's packages are php-cli, php-mysql, php-pgsql and php-sqlite3"
)
NPM = needs(shutil.which("npm"), "npm is not on this machine; Debian's packages are nodejs and npm")
NODE_ALONE = needs(shutil.which("node"), "node is not on this machine; Debian's package is nodejs")
CURL = needs(shutil.which("curl"), "curl is not on this machine")


def keys(box: Outbox) -> dict[str, bytes]:
    """Message key -> payload, of the messages there are."""
    return {bytes(row.message_key).decode(): bytes(row.payload) for row in box.rows(outbox_contents)}


# -- SQL -------------------------------------------------------------------------------------------------------------------


def test_an_intent_written_with_four_columns_becomes_a_message(box: Outbox, producer: URL, engine_name: str) -> None:
    run_sql(producer, sql("Recording by SQL", engine_name))
    assert box.adopt() == 1
    assert keys(box) == {"order-101-submitted": b'{"order": 101, "total": "19.99"}'}
    (content,) = box.rows(outbox_contents)
    assert (content.schema_version, content.created_by) == (1, "sql")
    assert 0 <= box.now - content.occurred_at < 3600 * MICROS
    grant = box.take("marketplace")
    assert grant.message_key == "order-101-submitted"


def test_a_time_that_the_database_tells_is_the_one_that_is_meant(box: Outbox, producer: URL, engine_name: str) -> None:
    (statement,) = sql("Times", engine_name)
    run_sql(producer, [statement])
    assert box.adopt() == 1
    assert box.claim("marketplace") == ()
    box.move(3601)
    box.promote()
    assert box.take("marketplace").message_key == "order-102-reminder"


def test_what_is_set_aside_is_seen_mended_and_deleted(
    box: Outbox, producer: URL, migrated_url: str, engine_name: str
) -> None:
    see, mend, delete = sql("What is set aside", engine_name)
    (wrong,) = sql("Recording by SQL", engine_name)[2:3]
    run_sql(producer, [wrong.replace("'marketplace'", "'nobody'"), wrong.replace("}'", "'").replace("101-s", "100-s")])
    box.adopt()
    aside = {row.destination: row for row in run_sql(migrated_url, [see])}
    assert {name: row.reason for name, row in aside.items()} == {
        "nobody": "destination must be one that was set",
        "marketplace": "payload must be JSON",
    }
    mended, deleted = aside["nobody"].id, aside["marketplace"].id
    run_sql(migrated_url, [mend.replace("17", str(mended)), delete.replace("18", str(deleted))])
    box.adopt()
    assert list(keys(box)) == ["order-101-submitted"]
    assert box.rows(outbox) == []


@pytest.mark.engines(*SERVER_NAMES)
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT payload FROM tenure_outbox",
        "UPDATE tenure_outbox SET destination = 'elsewhere'",
        "DELETE FROM tenure_outbox",
        "INSERT INTO tenure_outbox (id, message_key, type, destination, payload) VALUES (9, 'k', 't', 'd', '1')",
        "INSERT INTO tenure_outbox (message_key, type, destination, payload, state) VALUES ('k', 't', 'd', '1', 'set_aside')",
        "SELECT id FROM tenure_outbox_messages",
    ],
)
def test_a_producer_may_do_nothing_but_record(box: Outbox, producer: URL, statement: str) -> None:
    with pytest.raises(DBAPIError, match="denied"):
        run_sql(producer, [statement])


@pytest.mark.engines("postgresql")
def test_without_the_right_on_the_sequence_an_insert_is_refused(box: Outbox, producer: URL, migrated_url: str) -> None:
    run_sql(migrated_url, ["REVOKE USAGE ON SEQUENCE tenure_outbox_id_seq FROM shop"])
    with pytest.raises(DBAPIError, match="permission denied for sequence"):
        run_sql(producer, sql("Recording by SQL", "postgresql")[2:3])


# -- programs --------------------------------------------------------------------------------------------------------------

BY_WORD = {" ".join((one.language, *one.words)): one for one in BLOCKS if one.section == "In your language"}


@pytest.fixture
def guarded(box: Outbox) -> Iterator[Outbox]:
    """With the development guard on, where there is one: every program writes both in one transaction, its own change first."""
    if not box.database.dialect.triggers_see_transactions:
        yield box
        return
    box.database.run(guard.turn, [guard.Turn(on=True)])
    yield box
    box.database.run(guard.turn, [guard.Turn(on=False)])


def record_by(name: str, producer: URL, folder: Path, box: Outbox, number: int, drivername: str | None = None) -> None:
    """Run an example: it writes its order and its intent; run again, its order is there, and nothing is recorded."""
    block = BY_WORD[name]
    url = producer if drivername is None else producer.set(drivername=drivername)
    variables = {**environment(producer), "DATABASE_URL": url.render_as_string(hide_password=False)}
    done = run_program(block, folder, variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stdout + done.stderr
    assert box.adopt() == 1
    (content,) = box.rows(outbox_contents)
    assert bytes(content.message_key).decode() == f"order-{number}-submitted"
    assert json.loads(bytes(content.payload)) == {"id": number, "total": "19.99"}
    again = run_program(block, folder, variables)
    assert again.returncode != 0
    assert box.rows(outbox) == []


@PHP
def test_php(guarded: Outbox, producer: URL, tmp_path: Path) -> None:
    record_by("php", producer, tmp_path, guarded, 103)


@NPM
@NODE_ALONE
@pytest.mark.engines("mariadb", "mysql")
def test_node(guarded: Outbox, producer: URL, tmp_path: Path) -> None:
    record_by("js", producer, tmp_path, guarded, 104, "mysql")


def test_sqlalchemy(guarded: Outbox, producer: URL, tmp_path: Path) -> None:
    record_by("python sqlalchemy", producer, tmp_path, guarded, 105)


@pytest.mark.engines("mariadb", "mysql")
def test_pymysql(guarded: Outbox, producer: URL, tmp_path: Path) -> None:
    record_by("python pymysql", producer, tmp_path, guarded, 106)


@pytest.mark.engines("postgresql")
def test_psycopg(guarded: Outbox, producer: URL, tmp_path: Path) -> None:
    record_by("python psycopg", producer, tmp_path, guarded, 107, "postgresql")


@pytest.mark.engines("sqlite")
def test_sqlite3(guarded: Outbox, producer: URL, tmp_path: Path) -> None:
    record_by("python sqlite3", producer, tmp_path, guarded, 108)


# -- over HTTP -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as one:
        yield one


@pytest.fixture
def service(migrated_url: str) -> Iterator[ServiceProcess]:
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    with ServiceProcess(migrated_url, encryption_keys=key, delivery_allowed_targets="127.0.0.1") as one:
        yield one


def shell(service: ServiceProcess, *scripts: str) -> str:
    script = STRICT + "\n".join(scripts).replace(DEFAULT_URL, service.url)
    done = subprocess.run(
        ["bash", "-c", script], env=clean({}), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def scripts(*words: str) -> list[str]:
    return [one.text for one in BLOCKS if one.language == "sh" and one.words == words]


@CURL
def test_the_calls_work_from_the_first_to_the_last(service: ServiceProcess, migrated_url: str) -> None:
    said = shell(service, *scripts())
    assert '"state":"sent"' in said
    (message,) = service.get("/v1/outbox/messages?message_key=order-100-submitted")["items"]
    assert (message["state"], message["provider_operation_id"]) == ("sent", "ch_81f2")
    ends = {}
    for key in ("order-200-submitted", "order-300-paid"):
        (message,) = service.get(f"/v1/outbox/messages?message_key={key}")["items"]
        events = service.get(f"/v1/outbox/messages/{message['id']}")["events"]
        ends[key] = (message["state"], [event["kind"] for event in events][-2:])
    assert ends == {
        "order-200-submitted": ("sent", ["unknown", "reconciled"]),
        "order-300-paid": ("dead", ["reconciled", "dead"]),
    }


@pytest.mark.engines("sqlite")
def test_a_producer_that_died_is_asked_at_the_endpoint_of_the_page(service: ServiceProcess, tmp_path: Path) -> None:
    (block,) = (one for one in BLOCKS if one.words == ("check",))
    names: dict[str, Any] = {}
    exec(compile(block.text, PAGE, "exec"), names)
    database = str(tmp_path / "shop.db")
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)")
        db.execute("INSERT INTO orders VALUES (200, 'placed'), (201, 'cancelled')")
    check = type("Check", (names["Check"],), {"database": database, "log_message": lambda *_: None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), check)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        service.put("/v1/outbox/destinations/marketplace", {"delivery": {"mode": "pull"}}, 201)
        for order in (200, 201, 202):
            url = f"http://127.0.0.1:{server.server_address[1]}/outbox/order-{order}"
            prepare = {"decide_within_seconds": 0.1, "check_url": url}
            body = {
                "message_key": f"k{order}",
                "type": "t",
                "destination": "marketplace",
                "payload": 1,
                "prepare": prepare,
            }
            service.post("/v1/outbox/messages", body, 201)

        def decided() -> bool:
            states = {one["message_key"]: one["state"] for one in service.get("/v1/outbox/messages")["items"]}
            return states == {"k200": "pending", "k201": "aborted", "k202": "prepared"}

        eventually(decided, what="two answers that decide, and one that does not")
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def delivered(service: ServiceProcess, receiver: Receiver) -> tuple[Received, str]:
    """A message as the service delivers it to the destination of the page, and the secret that it is signed with."""
    calls = "\n".join(scripts("delivery")).replace(DOCUMENTED_HOOK, receiver.url)
    secret = shell(service, *scripts()[:1], calls, '\nprintf "\\n%s" "$secret"').splitlines()[-1]
    message = {"message_key": "k", "type": "t", "destination": "hooks", "payload": {"a": "é"}, "ordering_key": "o"}
    service.post("/v1/outbox/messages", message, 201)
    return eventually(lambda: receiver.received, what="a delivery")[0], secret


@CURL
@PHP
@NODE_ALONE
@pytest.mark.engines("sqlite")
def test_receivers_know_what_is_genuine(delivered: tuple[Received, str], tmp_path: Path) -> None:
    call, secret = delivered
    tails = {
        "python": "\nimport json, sys\ntold = json.load(sys.stdin)\n"
        'print(is_genuine(told["headers"], told["body"].encode(), told["secret"]))',
        "js": '\nimport { readFileSync } from "node:fs";\nconst told = JSON.parse(readFileSync(0, "utf8"));\n'
        "console.log(isGenuine(told.headers, Buffer.from(told.body), told.secret));",
        "php": "\n$told = json_decode(stream_get_contents(STDIN), true);\n"
        "echo is_genuine($told['headers'], $told['body'], $told['secret']) ? 'true' : 'false';",
    }
    genuine: dict[str, Any] = {"headers": call.headers, "body": call.body.decode(), "secret": secret}
    other = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    forged = [
        genuine | {"body": genuine["body"] + " "},
        genuine | {"secret": other},
        genuine | {"headers": call.headers | {"webhook-timestamp": "1700000000"}},
        genuine | {"headers": call.headers | {"webhook-id": "another"}},
        genuine | {"headers": {"webhook-id": "x"}},
    ]
    rotated = genuine | {
        "headers": call.headers | {"webhook-signature": f"v1,AAAA {call.headers['webhook-signature']}"}
    }
    blocks = [one for one in BLOCKS if one.words == ("verify",)]
    assert {one.language for one in blocks} == set(tails)
    for block in blocks:
        for told, wanted in [(genuine, "true"), (rotated, "true"), *((one, "false") for one in forged)]:
            done = run_program(block, tmp_path, {}, tails[block.language], json.dumps(told))
            assert (done.returncode, done.stdout.strip().lower()) == (0, wanted), (block.language, told, done)


@CURL
@pytest.mark.engines("sqlite")
def test_every_header_that_the_page_names_is_sent(delivered: tuple[Received, str]) -> None:
    call, _ = delivered
    (rows,) = (part for part in (ROOT / PAGE).read_text().split("\n\n") if part.startswith("| Header |"))
    named = set(re.findall(r"`((?:ce|webhook|idempotency)-[a-z]+)`", rows))
    optional = {"ce-subject", "ce-correlationid"}
    assert named - optional <= set(call.headers)
    assert {name for name in call.headers if name.startswith(("ce-", "webhook-"))} - named == {"ce-specversion"}


# -- the page itself -------------------------------------------------------------------------------------------------------


def test_no_example_is_left_out() -> None:
    """Each block is one that a test of this file runs."""
    run = {"Recording by SQL", "Times", "What is set aside", "Rights"}
    for block in BLOCKS:
        known = {
            "sql": block.section in run,
            "sh": block.words in ((), ("delivery",)),
            "php": block.section == "In your language" or block.words == ("verify",),
            "js": block.section == "In your language" or block.words == ("verify",),
            "python": block.section == "In your language" or block.words in (("verify",), ("check",)),
        }
        assert known.get(block.language), block
    assert sorted(BY_WORD) == [
        "js", "php", "python psycopg", "python pymysql", "python sqlalchemy", "python sqlite3",
    ]  # fmt: skip


def test_every_column_of_a_producer_is_told_of_and_granted() -> None:
    own = {"id", "state", "reason", "recorded_at"}
    columns = [column.name for column in outbox.c if column.name not in own]
    section = (ROOT / PAGE).read_text().split("\n### Columns\n")[1].split("\n### ")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(first_cells))) == sorted(columns)
    for engine in SERVER_NAMES:
        (granted,) = re.findall(r"INSERT \((.*?)\)", " ".join(sql("Rights", engine)), re.DOTALL)
        assert sorted(name.strip() for name in granted.split(",")) == sorted(columns)


def test_the_lock_of_the_node_packages_names_no_registry() -> None:
    lock = json.loads((NODE / "package-lock.json").read_text())
    assert lock["packages"]["node_modules/mysql2"]["version"] == "3.24.6"
    assert all("resolved" not in one for one in lock["packages"].values())
    assert all("integrity" in one for name, one in lock["packages"].items() if name)
