"""Contracts over HTTP, on every engine: register, read, page, patterns, audit, lost answers, races, check, rule pages."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from app.access import ANONYMOUS, Principal, Role
from app.jsontext import parse
from app.primitives.audit.model import new_id
from app.primitives.contracts.model.contract import Contract, Rule
from app.primitives.contracts.model.schema import manifest_schema
from app.primitives.contracts.ops import contracts as ops
from app.primitives.contracts.ops.contracts import Put, Stored
from app.primitives.contracts.tables import contracts
from app.primitives.jobs.tables import job_terms
from tests.primitives.contracts.promises import GOOD, REASON, exempt, good
from tests.primitives.jobs.driving import Jobs
from tests.service import Service

pytestmark = pytest.mark.anyio

PATH = "/v1/contracts/billing.charge/1"


async def audited(service: Service) -> list[dict[str, Any]]:
    items = (await service.get("/v1/audit?kind=contract", status=200))["items"]
    return [item for item in items if item["action"] == "contracts.put"]


async def key(service: Service, *roles: str, patterns: tuple[str, ...] = ()) -> dict[str, str]:
    """Headers with a key; the first one that is made is an admin's, and is sent from then on."""
    if "authorization" not in service.client.headers:
        made = await service.post("/v1/api-keys", {"name": "first", "roles": ["admin"]}, status=201)
        service.client.headers["authorization"] = f"Bearer {made['key']}"
    body = {"name": "n", "roles": list(roles), "patterns": list(patterns)}
    made = await service.post("/v1/api-keys", body, status=201)
    return {"authorization": f"Bearer {made['key']}"}


# -- put and get -----------------------------------------------------------------------------------------------------------


async def test_a_contract_is_made_then_left_alone_then_replaced(service: Service) -> None:
    made = await service.put(PATH, GOOD, status=201)
    assert (made["valid"], made["violations"], made["replayed"]) == (True, [], False)
    service.move(5)
    again = await service.put(PATH, GOOD, status=200)
    assert again == {**made, "replayed": True}
    service.move(5)
    other = await service.put(PATH, good(timeout_seconds=30), status=200)
    assert (other["replayed"], other["timeout_seconds"], other["created_at"]) == (False, 30, made["created_at"])
    assert other["updated_at"] > made["updated_at"]
    read = await service.get(PATH, status=200)
    assert read == {name: value for name, value in other.items() if name != "replayed"}
    assert [entry["details"]["created"] for entry in await audited(service)] == [False, True]


async def test_everything_that_can_be_said_is_given_back(service: Service) -> None:
    whole = {
        "description": "Büro 😀",
        "retry": {"max_attempts": 3, "retry_until_seconds": None, "unlimited_reason": None, "max_exceptions": 2},
        "backoff_seconds": [1.5, 60.0],
        "terminal_handler": {
            "enqueue": {"queue": "q", "type": "t", "schema_version": 9},
            "outbox": None,
        },
        "trigger": "event",
        "dedup": {"unique_by": "/a~1b/0", "no_overlap_by": None, "upstream_debounce_reason": None},
        "external_calls": True,
        "timeout_seconds": 45.0,
        "lease_seconds": 60.0,
        "heartbeat_seconds": 20.0,
        "effects": "keyed",
        "on_lease_loss": "unknown",
        "max_lease_losses": 4,
        "exemptions": [{"rule": "QUEUE003", "reason": REASON, "expires_on": "2030-01-31"}],
        "payload_schema": {"type": "object", "required": ["id"]},
    }
    made = await service.put(PATH, whole, status=201)
    assert {name: made[name] for name in whole} == whole


async def test_the_payload_schema_is_kept_byte_for_byte(service: Service) -> None:
    schema = b'{"type": "object",  "minProperties":1, "x":1.50e0}'
    body = b'{"timeout_seconds":45,"payload_schema":' + schema + b"}"
    answer = await service.client.put(PATH, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 201
    assert b'"payload_schema":' + schema in answer.content
    assert b'"payload_schema":' + schema in (await service.client.get(PATH)).content


async def test_a_contract_that_breaks_rules_is_stored_with_its_findings(service: Service) -> None:
    made = await service.put(PATH, good(terminal_handler=None), status=201)
    assert made["valid"] is False
    (finding,) = made["violations"]
    assert (finding["rule"], finding["type"], finding["schema_version"]) == ("QUEUE003", "billing.charge", 1)
    assert (finding["pointer"], finding["page"]) == ("/terminal_handler", "/problems/QUEUE003")
    assert finding["id"] == "billing.charge@1::QUEUE003"
    assert (await audited(service))[0]["details"]["violations"] == ["QUEUE003"]


async def test_a_contract_lapses_without_anybody_writing_anything(service: Service) -> None:
    today = (await service.put("/v1/contracts/other/1", GOOD, status=201))["created_at"][:10]
    made = await service.put(
        PATH, good(terminal_handler=None, exemptions=[exempt("QUEUE003", expires_on=today)]), status=201
    )
    assert (made["valid"], made["exempted"][0]["expires_on"]) == (True, today)
    assert made["exempted"][0]["reason"] == REASON
    service.move(24 * 3600)
    read = await service.get(PATH, status=200)
    assert (read["valid"], read["exempted"], read["valid_until"]) == (False, [], None)
    assert f"expired on {today}" in read["violations"][0]["detail"]


@pytest.mark.parametrize(("changes", "pointer"), [
    ({"exemptions": [exempt("QUEUE001", "this was quicker")]}, "#/exemptions/0/reason"),
    ({"exemptions": [exempt("QUEUE001", "")]}, "#/exemptions/0/reason"),
    ({"retry": {"unlimited_reason": "todo"}}, "#/retry/unlimited_reason"),
    ({"dedup": {"upstream_debounce_reason": "n/a"}}, "#/dedup/upstream_debounce_reason"),
    ({"payload_schema": {"type": 7}}, "#/payload_schema"),
    ({"gate": "summer"}, "#/gate"),
])  # fmt: skip
async def test_what_cannot_stand_is_refused_and_nothing_is_stored(
    service: Service, changes: dict[str, Any], pointer: str
) -> None:
    problem = await service.put(PATH, good(**changes), status=422)
    assert [one["pointer"] for one in problem["errors"]] == [pointer]
    await service.get(PATH, status=404)
    assert await audited(service) == []


@pytest.mark.parametrize("path", ["/v1/contracts/a%20b/1", "/v1/contracts/t/0", "/v1/contracts/t/x", "/v1/contracts/t/1.0",
                                  "/v1/contracts/t/-1", "/v1/contracts/t/2147483648", "/v1/contracts/t/1_0"])  # fmt: skip
async def test_a_path_that_names_no_type_and_version_is_refused(service: Service, path: str) -> None:
    await service.put(path, GOOD, status=422)
    await service.get(path, status=422)


async def test_types_that_differ_in_case_alone_and_versions_are_contracts_of_their_own(service: Service) -> None:
    for path, timeout in (("T/1", 10), ("t/1", 11), ("t/2", 12)):
        await service.put(f"/v1/contracts/{path}", good(timeout_seconds=timeout), status=201)
    for path, timeout in (("T/1", 10), ("t/1", 11), ("t/2", 12)):
        assert (await service.get(f"/v1/contracts/{path}", status=200))["timeout_seconds"] == timeout


async def test_two_registrations_at_once_leave_one_of_them_whole(service: Service) -> None:
    both = [good(timeout_seconds=40), good(timeout_seconds=50, terminal_handler=None)]
    answers = await asyncio.gather(*(service.client.put(PATH, json=one) for one in both))
    assert sorted(answer.status_code for answer in answers) == [200, 201]
    read = await service.get(PATH, status=200)
    assert (read["timeout_seconds"], read["valid"]) in [(40, True), (50, False)]
    assert len(await audited(service)) == 2


# -- the list --------------------------------------------------------------------------------------------------------------


async def test_the_list_has_every_contract_once_in_order(service: Service) -> None:
    wanted = [("a", 1), ("a", 2), ("a", 10), ("b", 1), ("c", 1)]
    for type_, version in reversed(wanted):
        await service.put(f"/v1/contracts/{type_}/{version}", GOOD, status=201)
    seen: list[tuple[str, int]] = []
    cursor = ""
    while cursor is not None:
        page = await service.get(f"/v1/contracts?limit=2{cursor and '&cursor=' + cursor}", status=200)
        seen += [(item["type"], item["schema_version"]) for item in page["items"]]
        cursor = page["next_cursor"]
    assert seen == wanted
    assert (await service.get("/v1/contracts?cursor=nonsense"))["code"] == "invalid_cursor"


# -- who may ---------------------------------------------------------------------------------------------------------------


async def test_a_limited_key_writes_and_reads_only_types_within_its_names(service: Service) -> None:
    limited = await key(service, "operator", patterns=("billing.*", "billing"))
    await service.put("/v1/contracts/mail.send/1", GOOD, status=201)
    await service.put(PATH, GOOD, status=201, headers=limited)
    await service.put("/v1/contracts/mail.send/2", GOOD, status=403, headers=limited)
    await service.put("/v1/contracts/billing/1", GOOD, status=201, headers=limited)
    await service.get("/v1/contracts/mail.send/1", status=403, headers=limited)
    listed = (await service.get("/v1/contracts?limit=1", headers=limited))["items"]
    rest = (await service.get("/v1/contracts", headers=limited))["items"]
    assert [item["type"] for item in listed] == ["billing"]
    assert [item["type"] for item in rest] == ["billing", "billing.charge"]


async def test_a_limited_key_may_not_reach_other_queues_through_a_terminal_handler(service: Service) -> None:
    limited = await key(service, "operator", patterns=("billing.*",))
    beyond = good(terminal_handler={"enqueue": {"queue": "payroll", "type": "billing.x"}})
    await service.put(PATH, beyond, status=403, headers=limited)
    within = good(terminal_handler={"enqueue": {"queue": "billing.dead", "type": "billing.x"}})
    await service.put(PATH, within, status=201, headers=limited)


async def test_who_registered_is_kept(service: Service) -> None:
    operator = await key(service, "operator")
    made = await service.put(PATH, GOOD, status=201, headers=operator)
    assert made["created_by"] == made["updated_by"] != "anonymous"
    replaced = await service.put(PATH, good(timeout_seconds=5), status=200)
    assert replaced["created_by"] == made["created_by"]
    assert replaced["updated_by"] != made["updated_by"]


# -- the op ----------------------------------------------------------------------------------------------------------------


def command(**changes: Any) -> Put:
    said = parse(Contract, msgspec.json.encode(good(**changes)), max_value_bytes=1 << 18)
    return Put("billing.charge", 1, said, ANONYMOUS, "r-1", new_id(), new_id())


def test_a_registration_whose_commit_got_no_answer_is_answered_as_at_first(jobs: Jobs) -> None:
    for changes in ({}, {"timeout_seconds": 30}):
        (first,), (second,) = jobs.repeat(ops.put, command(**changes))
        assert isinstance(first, Stored)
        assert (second.created, second.replayed, second.contract) == (first.created, first.replayed, first.contract)
    assert len(jobs.rows(contracts)) == 1


def test_the_terms_are_committed_with_the_contract(jobs: Jobs) -> None:
    jobs.database.run(ops.put, [command(), command(terminal_handler=None)])
    (row,) = jobs.rows(job_terms)
    assert (row.type, row.schema_version) == ("billing.charge", 1)

    def failing(tx: Any, commands: Any) -> Any:
        ops.put(tx, commands)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        jobs.database.run(failing, [command(timeout_seconds=7)])
    assert [bytes(one.terms) for one in jobs.rows(job_terms)] == [bytes(row.terms)]
    assert b"7.0" not in bytes(jobs.rows(contracts)[0].document)


def test_one_refused_registration_touches_no_other_of_its_unit(jobs: Jobs) -> None:
    bad = command(exemptions=[exempt("QUEUE001", "legacy")])
    first, second, third = jobs.database.run(ops.put, [command(), bad, command(timeout_seconds=9)])
    assert (first.created, third.created, third.replayed) == (True, False, False)
    assert second.code.name == "validation_failed"


def test_a_contract_is_seen_by_whoever_its_key_allows(jobs: Jobs) -> None:
    jobs.database.run(ops.put, [command()])
    stranger = Principal("k", "k", frozenset({Role.VIEWER}), ("mail.*",))
    assert jobs.database.read(ops.get, ops.Get("billing.charge", 1, stranger)).code.name == "forbidden"
    assert jobs.database.read(ops.list_contracts, ops.Listing(stranger)) == []


# -- check -----------------------------------------------------------------------------------------------------------------


async def check(service: Service, contracts: list[Any], status: int = 200, **more: Any) -> Any:
    manifest = {"contracts": contracts, **more.pop("manifest", {})}
    return await service.post("/v1/contracts/check", {"manifest": manifest, **more}, status=status)


async def test_check_judges_and_stores_nothing(service: Service) -> None:
    found = await check(service, [
        {"type": "a", "schema_version": 2, **GOOD},
        {"type": "b", "file": "app/b.yaml", **good(terminal_handler=None)},
        {"type": "c", **good(terminal_handler=None, exemptions=[exempt("QUEUE003")])},
        {"type": "d", **good(terminal_handler=None, exemptions=[exempt("QUEUE003", "todo")])},
        {"type": "e", **good(retry={"unlimited_reason": "n/a"})},
    ], manifest={"excluded": [{"type": "mail", "reason": REASON}, {"type": "sms", "reason": "legacy"}]})  # fmt: skip
    assert found["ok"] is False
    assert [one["id"] for one in found["new"]] == [
        "app/b.yaml::b@1::QUEUE003",
        "manifest::d@1::QUEUE003",
        "manifest::e@1::QUEUE001",
        "manifest::sms@*::QUEUE001",
    ]
    assert [one["id"] for one in found["exempted"]] == ["manifest::c@1::QUEUE003"]
    assert [one["type"] for one in found["excluded"]] == ["mail"]
    assert found["counts"] == {"contracts": 5, "new": 4, "known": 0, "paid": 0, "exempted": 1, "excluded": 1}
    assert (await service.get("/v1/contracts"))["items"] == []


async def test_a_baseline_turns_new_into_known_and_tells_what_is_paid(service: Service) -> None:
    debt = [
        {"id": f"manifest::{one}@1::QUEUE003", "since": "2026-12-01", "reason": REASON} for one in ("owing", "paid")
    ]
    contracts = [{"type": "owing", **good(terminal_handler=None)}, {"type": "paid", **GOOD}]
    baseline = {"version": 1, "debt": debt}
    found = await check(service, contracts, baseline=baseline)
    assert (found["ok"], found["new"], found["paid"]) == (True, [], ["manifest::paid@1::QUEUE003"])
    assert [one["id"] for one in found["known"]] == ["manifest::owing@1::QUEUE003"]
    assert (await check(service, contracts, baseline=baseline, strict=True))["ok"] is False
    assert (await check(service, contracts[:1], baseline={"version": 1, "debt": debt[:1]}, strict=True))["ok"] is True


async def test_a_malformed_manifest_is_refused_with_its_places(service: Service) -> None:
    twice = await check(service, [{"type": "a"}, {"type": "a", "schema_version": 1}], 422)
    assert twice["errors"] == [{"pointer": "#/manifest", "detail": "declares a type and version twice"}]
    both = await check(service, [{"type": "a"}], 422, manifest={"excluded": [{"type": "a", "reason": REASON}]})
    assert both["errors"][0]["pointer"] == "#/manifest"
    schema = await check(service, [{"type": "a"}, {"type": "b", "payload_schema": {"type": 7}}], 422)
    assert [one["pointer"] for one in schema["errors"]] == ["#/manifest/contracts/1/payload_schema"]
    unknown = await check(service, [{"type": "a", "gate": "x"}], 422, strict="yes")
    assert {one["pointer"] for one in unknown["errors"]} == {"#/manifest/contracts/0/gate", "#/strict"}


async def test_an_installation_judges_by_its_own_settings_and_clock(service: Service) -> None:
    contract = {"type": "a", **good(timeout_seconds=90)}
    found = await check(service, [contract])
    assert [one["rule"] for one in found["new"]] == ["QUEUE007"]
    service.runtime.settings = service.runtime.settings.model_copy(update={"jobs_lease_seconds": 100.0})
    assert (await check(service, [contract]))["ok"] is True


# -- pages and the schema --------------------------------------------------------------------------------------------------


@pytest.mark.engines("sqlite")
async def test_every_rule_has_its_page_for_people_and_programs(service: Service) -> None:
    for rule in Rule:
        read = await service.get(f"/problems/{rule}", status=200)
        assert (read["code"], read["status"], read["retryable"]) == (rule, 422, False)
        transport = httpx.ASGITransport(service.app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as browser:
            page = await browser.get(f"/problems/{rule}", headers={"accept": "text/html"})
        assert page.headers["content-type"].startswith("text/html")
        assert read["title"] in page.text
        assert "HTTP status" not in page.text
    await service.get("/problems/QUEUE008", status=404)
    await service.get("/problems/locked", status=200)


@pytest.mark.engines("sqlite")
async def test_the_schema_for_editors_is_served(service: Service) -> None:
    answer = await service.client.get("/contracts.schema.json")
    assert answer.headers["content-type"] == "application/schema+json"
    assert answer.json() == manifest_schema()
