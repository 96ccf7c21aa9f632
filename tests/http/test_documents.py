"""The OpenAPI documents, the pages, and the files that they load."""

from __future__ import annotations

import hashlib
import json
import re
from importlib.resources import files
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV30SpecValidator, OpenAPIV31SpecValidator

from app.errors import CODES
from app.http.pages import accepts_html
from tests.http.conftest import Service
from tests.http.test_requests import is_problem

pytestmark = pytest.mark.anyio
OPERATION = re.compile(r"[a-z]+(_[a-z0-9]+)+")


def operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for item in document["paths"].values() for operation in item.values()]


async def test_both_documents_are_valid(service: Service) -> None:
    client = await service.client()
    newest = (await client.get("/openapi.json")).json()
    old = (await client.get("/openapi-3.0.json")).json()
    assert newest["openapi"].startswith("3.1")
    assert old["openapi"] == "3.0.3"
    OpenAPIV31SpecValidator(newest).validate()
    OpenAPIV30SpecValidator(old).validate()
    assert "null" not in str([one.get("type") for one in old["components"]["schemas"].values()])


async def test_every_operation_is_named_told_and_tagged(service: Service) -> None:
    document = service.app.openapi()
    names = [operation["operationId"] for operation in operations(document)]
    assert len(set(names)) == len(names)
    tags = {tag["name"] for tag in document["tags"]}
    assert all(tag["description"] for tag in document["tags"])
    for operation in operations(document):
        assert OPERATION.fullmatch(operation["operationId"])
        assert len(operation["tags"]) == 1
        assert operation["tags"][0] in tags
        assert operation["summary"]
        assert operation["description"]
        assert "default" in operation["responses"]
        assert any(status.startswith("2") for status in operation["responses"])
    assert document["info"]["license"]["name"] == "Apache-2.0"
    assert document["servers"]
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


async def test_there_are_no_unions_in_what_clients_send_and_no_framework_errors(service: Service) -> None:
    schemas = service.app.openapi()["components"]["schemas"]
    assert "HTTPValidationError" not in schemas
    assert "oneOf" not in str(schemas)
    for name, schema in schemas.items():
        for field, one in schema.get("properties", {}).items():
            choices = [choice for choice in one.get("anyOf", ()) if choice != {"type": "null"}]
            assert len(choices) <= 1, f"{name}.{field}"


async def test_an_opaque_value_is_any_json_in_the_document(service: Service) -> None:
    schema = service.app.openapi()["components"]["schemas"]["EchoBody"]
    assert "type" not in schema["properties"]["payload"]
    assert "type" not in schema["properties"]["result"]
    assert "anyOf" not in schema["properties"]["result"]
    assert schema["required"] == ["queue", "payload"]
    assert schema["additionalProperties"] is False


async def test_refusals_are_shown_with_an_example_for_each_code(service: Service) -> None:
    responses = service.app.openapi()["paths"]["/v1/demo/echo"]["post"]["responses"]
    assert set(responses) == {"201", "400", "401", "403", "413", "415", "422", "423", "503", "default"}
    examples = responses["423"]["content"]["application/problem+json"]["examples"]
    assert examples["locked"]["value"]["code"] == "locked"
    assert "Retry-After" in responses["423"]["headers"]
    assert service.app.openapi()["paths"]["/livez"]["get"]["responses"]["200"]["content"].keys() == {
        "application/health+json"
    }


async def test_the_compact_reference_names_every_call_and_code(service: Service) -> None:
    answer = await (await service.client()).get("/llms.txt")
    assert answer.headers["content-type"].startswith("text/plain")
    for operation in operations(service.app.openapi()):
        if operation["tags"] != ["probes"]:
            assert f"`{operation['operationId']}`" in answer.text
    assert all(f"`{code.name}`" in answer.text for code in CODES)
    # a compact reference: a fraction of the document that it tells
    assert len(answer.content) < len(json.dumps(service.app.openapi())) / 4


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
async def test_every_code_has_its_page_for_people_and_programs(service: Service, code: Any) -> None:
    client = await service.client()
    read = (await client.get(f"/problems/{code.name}")).json()
    assert (read["code"], read["status"], read["example"]["type"]) == (code.name, code.status, f"/problems/{code.name}")
    page = await client.get(
        f"/problems/{code.name}", headers={"accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
    )
    assert page.headers["content-type"].startswith("text/html")
    assert code.name in page.text
    assert "script" not in page.headers["content-security-policy"]


async def test_the_list_of_codes_and_an_unknown_code(service: Service) -> None:
    client = await service.client()
    assert len((await client.get("/problems")).json()["items"]) == len(CODES)
    assert "<table>" in (await client.get("/problems", headers={"accept": "text/html"})).text
    is_problem(await client.get("/problems/nonsense"), 404, "not_found")


@pytest.mark.parametrize(("accept", "html"), [
    (None, False), (b"*/*", False), (b"application/json", False), (b"text/html", True),
    (b"text/html;q=0.1,application/json", False),
    (b"text/html;q=x", False), (b"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
    (b"text/html;q=0", False),
])  # fmt: skip
def test_html_is_for_those_who_prefer_it(accept: bytes | None, html: bool) -> None:
    assert accepts_html(accept) is html


async def test_the_documentation_loads_nothing_from_elsewhere(service: Service) -> None:
    client = await service.client()
    page = await client.get("/docs")
    assert "http" not in page.text.replace("http-equiv", "")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "http" not in policy
    for path in re.findall(r"(?:href|src)=(/[^ >]+)", page.text):
        asset = await client.get(path)
        assert asset.status_code == 200
        assert asset.content
    is_problem(await client.get("/docs/static/README.md"), 404, "not_found")
    is_problem(await client.get("/docs/static/..%2Fdocs.py"), 404, "not_found")


def test_the_vendored_files_are_what_was_published() -> None:
    static = files("app.http").joinpath("static")
    for line in static.joinpath("SHA256SUMS").read_text().splitlines():
        checksum, name = line.split()
        assert hashlib.sha256(static.joinpath(name).read_bytes()).hexdigest() == checksum, name
