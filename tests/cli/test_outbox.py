"""`tenure outbox` as a process, over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine

from tests.e2e.process import ROOT, ServiceProcess, environment, eventually, run_tenure

# a skin over calls that are tested on every engine: which one is behind them it cannot see
pytestmark = pytest.mark.engines("sqlite")

NOBODY = "01900000-0000-7000-8000-000000000000"


@pytest.fixture
def service(migrated_url: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(migrated_url) as running:
        running.put("/v1/outbox/destinations/shop", {"delivery": {"mode": "pull"}}, 201)
        running.put("/v1/outbox/destinations/safe", {"delivery": {"mode": "pull"}, "idempotent": True}, 201)
        yield running


def tenure(service: ServiceProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_tenure("outbox", *arguments, url=service.url)


def said(service: ServiceProcess, *arguments: str) -> Any:
    done = tenure(service, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def record(service: ServiceProcess, key: str, destination: str = "shop", type_: str = "t") -> str:
    message = {"message_key": key, "type": type_, "destination": destination, "payload": {"key": key}}
    return str(service.post("/v1/outbox/messages", message, 201)["id"])


def claim(service: ServiceProcess, destination: str = "shop") -> Any:
    wanted = {"destinations": [destination], "worker": "w"}
    (message,) = service.post("/v1/outbox/claim", wanted, 200)["messages"]
    return message


def settle(service: ServiceProcess, verb: str, destination: str = "shop", **fields: Any) -> str:
    message = claim(service, destination)
    body = {"token": message["reservation"]["token"], **fields}
    service.post(f"/v1/outbox/messages/{message['id']}/{verb}", body, 200)
    return str(message["id"])


def dead(service: ServiceProcess, key: str, type_: str = "t") -> str:
    record(service, key, type_=type_)
    return settle(service, "reject", category="declined")


# -- looking ---------------------------------------------------------------------------------------------------------------


def test_stats_count_by_destination_and_state(service: ServiceProcess, migrated_url: str) -> None:
    record(service, "a")
    record(service, "b", "safe")
    settle(service, "unknown", category="answer_lost")
    heading, safe, shop = tenure(service, "stats").stdout.splitlines()
    columns = heading.split("\t")
    assert dict(zip(columns, safe.split("\t"), strict=True))["pending"] == "1"
    assert dict(zip(columns, shop.split("\t"), strict=True))["unknown"] == "1"
    assert said(service, "stats")["totals"] == service.get("/v1/outbox/stats")["totals"]


def test_stats_tell_of_rows_that_were_set_aside(service: ServiceProcess, migrated_url: str) -> None:
    wrong = "INSERT INTO tenure_outbox (message_key, type, destination, payload) VALUES ('k', 't', 'nobody', '1')"
    with create_engine(migrated_url, poolclass=NullPool).begin() as connection:
        connection.exec_driver_sql(wrong)
    eventually(lambda: service.get("/v1/outbox/stats")["set_aside"] == 1, what="it is set aside")
    assert tenure(service, "stats").stderr.startswith("1 rows that were written by SQL are set aside")


def test_messages_are_listed_by_filter(service: ServiceProcess) -> None:
    ids = [record(service, "a"), record(service, "b", type_="u"), record(service, "c", "safe")]
    assert [one["id"] for one in said(service, "list")["items"]] == ids[::-1]
    settle(service, "sent")
    assert [one["id"] for one in said(service, "list", "--state", "sent")["items"]] == [ids[0]]
    assert [one["id"] for one in said(service, "list", "--type", "u")["items"]] == [ids[1]]
    assert [one["id"] for one in said(service, "list", "--destination", "safe")["items"]] == [ids[2]]
    assert [one["message_key"] for one in said(service, "list", "--key", "b")["items"]] == ["b"]
    few = said(service, "list", "--limit", "2")
    assert (len(few["items"]), few["more"]) == (2, True)
    text = tenure(service, "list", "--limit", "2")
    assert len(text.stdout.splitlines()) == 3
    assert text.stderr == "There are more than 2.\n"


def test_a_message_is_shown_with_its_history_and_its_payload_only_if_asked_for(service: ServiceProcess) -> None:
    message_id = dead(service, "a")
    text = tenure(service, "show", message_id).stdout
    fields, _, events = text.partition("\n\n")
    assert "state\tdead" in fields
    assert "payload" not in fields
    assert [line.split("\t")[1] for line in events.splitlines()] == ["event", "recorded", "claimed", "rejected", "dead"]
    assert 'payload\t{"key": "a"}' in tenure(service, "show", message_id, "--payload").stdout
    assert said(service, "show", message_id)["category"] == "declined"


# -- deciding --------------------------------------------------------------------------------------------------------------


def test_a_verdict_stands_and_keeps_its_evidence_as_it_was_written(service: ServiceProcess) -> None:
    record(service, "a")
    message_id = settle(service, "unknown", category="answer_lost")
    evidence = '{"amount": 1.50, "seen": "in their list"}'
    verdict = ("reconcile", message_id, "--verdict", "sent", "--evidence", evidence, "--provider-operation-id", "ch_1")
    done = tenure(service, *verdict, "--reason", "looked it up")
    assert (done.returncode, done.stderr) == (0, "Done: the message is sent.\n")
    told = said(service, "show", message_id)
    assert (told["state"], told["provider_operation_id"]) == ("sent", "ch_1")
    assert evidence.encode() in raw(service, message_id)
    assert said(service, *verdict)["replayed"] is True
    other = tenure(service, "reconcile", message_id, "--verdict", "dead", "--evidence", "1", "--json")
    assert (other.returncode, json.loads(other.stdout)["code"]) == (4, "verdict_conflict")


def raw(service: ServiceProcess, message_id: str) -> bytes:
    with service.client() as http:
        return http.get(f"/v1/outbox/messages/{message_id}").content


WRONG: list[tuple[int, tuple[str, ...]]] = [
    (3, ("reconcile", NOBODY, "--verdict", "sent", "--evidence", "1")),
    (3, ("show", NOBODY)),
    (2, ("show", "../keys")),
    (2, ("reconcile", NOBODY, "--verdict", "sent", "--evidence", "plain words")),
    (2, ("reconcile", NOBODY, "--verdict", "sent", "--evidence", '"\udcff"')),
    (2, ("reconcile", NOBODY, "--verdict", "sent")),
    (2, ("reconcile", NOBODY, "--verdict", "lost", "--evidence", "1")),
    (2, ("list", "--state", "lost")),
    (2, ("list", "--destination", "no spaces")),
    (2, ("list", "--key", "\udcff")),
    (2, ("purge", "--state", "unknown", "--older-than", "1d", "--yes")),
    (2, ("purge", "--state", "sent", "--older-than", "soon", "--yes")),
    (2, ("requeue", "--limit", "0", "--yes")),
]
UNASKED = [
    ("requeue",),
    ("release-stale", "--claimed-before", "0s"),
    ("purge", "--state", "dead", "--older-than", "0s"),
]


def test_what_is_wrong_ends_with_its_code_and_a_sentence(service: ServiceProcess) -> None:
    for code, arguments in WRONG:
        done = tenure(service, *arguments)
        assert (done.returncode, done.stdout) == (code, ""), (arguments, done.stderr)
        assert "Traceback" not in done.stderr


# -- many ------------------------------------------------------------------------------------------------------------------


def test_dead_messages_are_sent_again(service: ServiceProcess) -> None:
    first, second = dead(service, "a"), dead(service, "b", "u")
    looked = said(service, "requeue", "--dry-run")
    assert (looked["matched"], len(looked["items"])) == (2, 2)
    assert tenure(service, "requeue", "--dry-run", "--type", "u").stdout.splitlines()[1:] == ["shop\tu\t1"]
    assert said(service, "requeue", "--type", "u", "--yes") == {"changed": 1, "unknown": 0}
    states = {one["id"]: one["state"] for one in said(service, "list")["items"]}
    assert states == {first: "dead", second: "pending"}
    done = tenure(service, "requeue", "--limit", "1", "--yes")
    assert (done.returncode, done.stderr) == (0, "1 messages are to be sent again; there may be more.\n")


def test_stale_messages_are_taken_from_their_holders(service: ServiceProcess) -> None:
    record(service, "a")
    record(service, "b", "safe")
    claim(service)
    claim(service, "safe")
    assert said(service, "release-stale", "--claimed-before", "1h", "--dry-run")["matched"] == 0
    assert said(service, "release-stale", "--claimed-before", "1h", "--yes")["changed"] == 0
    done = tenure(service, "release-stale", "--claimed-before", "0s", "--yes")
    assert done.stderr == "2 messages were taken from their holders, 1 of them are unknown now.\n"
    assert {one["destination"]: one["state"] for one in said(service, "list")["items"]} == {
        "shop": "unknown",
        "safe": "pending",
    }


def test_ended_messages_are_forgotten(service: ServiceProcess) -> None:
    record(service, "a")
    settle(service, "sent")
    dead(service, "b")
    assert said(service, "purge", "--state", "sent", "--older-than", "1d", "--yes")["changed"] == 0
    assert said(service, "purge", "--state", "sent", "--older-than", "0s", "--yes")["changed"] == 1
    assert [one["message_key"] for one in said(service, "list")["items"]] == ["b"]


def test_without_a_terminal_nothing_is_done_unasked(service: ServiceProcess) -> None:
    dead(service, "a")
    for arguments in UNASKED:
        done = tenure(service, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--yes" in done.stderr
    assert said(service, "stats")["totals"]["dead"] == 1


@pytest.mark.parametrize(("answer", "code", "left"), [("n\n", 1, 1), ("y\n", 0, 0)])
def test_on_a_terminal_it_asks(service: ServiceProcess, answer: str, code: int, left: int) -> None:
    dead(service, "a")
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "app", "outbox", "requeue"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment({"url": service.url}), stdin=theirs, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        os.write(ours, answer.encode())
        _, asked = process.communicate(timeout=90)
    os.close(ours)
    assert process.returncode == code
    assert "Send dead messages again, at most 1000?" in asked
    assert said(service, "stats")["totals"]["dead"] == left
