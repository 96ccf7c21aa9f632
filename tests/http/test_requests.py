"""What every request meets, whatever it asks: ids, trace context, problems, types, sizes, methods, paths, headers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.access import Role
from app.errors import CODES
from app.http.middleware import parse_traceparent
from app.http.problem import MEDIA_TYPE
from tests.http.conftest import Service

pytestmark = pytest.mark.anyio
GOOD = {"queue": "q", "payload": {"a": 1}}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def is_problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    """Check that an answer is a whole problem, and give it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE
    problem: dict[str, Any] = answer.json()
    assert problem["code"] == code
    assert problem["type"] == f"/problems/{code}"
    assert problem["status"] == status
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert isinstance(problem["retryable"], bool)
    assert problem["title"] == next(one.title for one in CODES if one.name == code)
    assert problem["detail"]
    return problem


@pytest.mark.parametrize("path", ["/livez", "/v1/nowhere", "/plain/page", "/v1/audit"])
@pytest.mark.parametrize(
    ("given", "taken"), [("a", True), ("x" * 128, True), ("~!#", True), ("x" * 129, False), ("a b", False), ("", False)]
)
async def test_a_request_id_is_taken_or_made_and_echoed_on_every_answer(
    service: Service, path: str, given: str, taken: bool
) -> None:
    client = await service.client()
    answer = await client.get(path, headers={"X-Request-Id": given})
    assert (answer.headers["x-request-id"] == given) is taken
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(("text", "good"), [
    (TRACE, True), (TRACE.upper(), False), (TRACE.replace("00-4", "ff-4"), False),
    (f"00-{'0' * 32}-00f067aa0ba902b7-01", False),
    (TRACE[:-19] + "0" * 16 + "-01", False), (TRACE + "-x", False), ("01" + TRACE[2:] + "-more", True), ("nonsense", False),
    ("", False),
])  # fmt: skip
def test_a_trace_context_is_taken_only_if_valid(text: str, good: bool) -> None:
    assert (parse_traceparent(text.encode()) is not None) is good


async def test_the_trace_context_reaches_the_handler(service: Service) -> None:
    client = await service.client()
    answer = await client.post("/v1/demo/echo", json=GOOD, headers={"traceparent": TRACE})
    assert answer.json()["trace"] == TRACE
    answer = await client.post("/v1/demo/echo", json=GOOD, headers={"traceparent": "nonsense"})
    assert (answer.status_code, answer.json()["trace"]) == (201, None)


async def test_unknown_paths_and_methods_are_problems(service: Service) -> None:
    client = await service.client()
    is_problem(await client.get("/v1/nowhere"), 404, "not_found")
    is_problem(await client.get("/v1/demo/echo/"), 404, "not_found")
    is_problem(await client.get("/"), 404, "not_found")
    answer = await client.get("/v1/demo/echo")
    is_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    answer = await client.request("BREW", "/livez")
    is_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD"
    answer = await client.delete("/plain/page")
    is_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET"


@pytest.mark.parametrize(("path", "code"), [("/v1/demo/refuse", "locked"), ("/plain/refuse", "locked")])
async def test_a_refusal_is_a_problem_wherever_it_is_raised(service: Service, path: str, code: str) -> None:
    client = await service.client()
    answer = await client.post(path)
    is_problem(answer, 423, code)
    if path.startswith("/v1"):
        assert answer.headers["retry-after"] == "3"
        assert answer.json()["owner"] == "x"


@pytest.mark.parametrize("path", ["/v1/demo/fail", "/plain/fail"])
async def test_our_own_failure_is_logged_under_the_request_id_and_tells_nothing(
    service: Service, path: str, captured_logs: list[dict[str, Any]]
) -> None:
    client = await service.client()
    answer = await client.post(path, headers={"X-Request-Id": "r-1"})
    problem = is_problem(answer, 500, "internal")
    assert problem["retryable"] is True
    assert "hunter2" not in answer.text
    (failed,) = [one for one in captured_logs if one["event"] == "request_failed"]
    assert (failed["request_id"], failed["error"]) == ("r-1", "RuntimeError")


async def test_a_form_that_the_framework_validates_is_refused_without_its_values(service: Service) -> None:
    client = await service.client()
    answer = await client.post("/plain/form", json={"count": "hunter2"})
    problem = is_problem(answer, 422, "validation_failed")
    assert problem["errors"] == [{"pointer": "#/count", "detail": "must be an integer"}]
    assert "hunter2" not in answer.text
    is_problem(
        await client.post("/plain/form", content=b'{"count":NaN}', headers={"content-type": "application/json"}),
        422,
        "validation_failed",
    )
    is_problem(
        await client.post("/plain/form", content=b"{", headers={"content-type": "application/json"}),
        400,
        "validation_failed",
    )


@pytest.mark.parametrize(("media", "good"), [
    ("application/json", True), ("application/json; charset=utf-8", True), ("Application/JSON;charset=UTF-8", True),
    ("application/vnd.x+json", True), ("application/json; charset=latin-1", False), ("text/json", False), ("text/plain", False),
    ("application/x-www-form-urlencoded", False), ("", False), (None, False),
])  # fmt: skip
async def test_only_json_is_taken(service: Service, media: str | None, good: bool) -> None:
    client = await service.client()
    headers = {} if media is None else {"content-type": media}
    answer = await client.post("/v1/demo/echo", content=json.dumps(GOOD), headers=headers)
    if good:
        assert answer.status_code == 201
    else:
        is_problem(answer, 415, "unsupported_media_type")


async def test_an_empty_body_is_refused_and_one_on_a_get_is_ignored(service: Service) -> None:
    client = await service.client()
    is_problem(
        await client.post("/v1/demo/echo", headers={"content-type": "application/json"}), 400, "validation_failed"
    )
    answer = await client.request("GET", "/v1/demo/things/x", content=b"not json")
    assert answer.status_code == 200


async def test_opaque_values_come_back_as_they_were_sent(service: Service) -> None:
    client = await service.client()
    body = b'{"result": [1.50,\t1e2], "payload" : {"z":1,"a":12345678901234567890123, "z":2} ,"queue":"q"}'
    answer = await client.post("/v1/demo/echo", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 201
    assert b'"payload":{"z":1,"a":12345678901234567890123, "z":2}' in answer.content
    assert b'"result":[1.50,\t1e2]' in answer.content


async def test_queries_are_validated(service: Service) -> None:
    client = await service.client()
    assert (await client.get("/v1/demo/things/x?limit=7")).json() == {"name": "x", "limit": 7}
    for query, pointer in (
        ("limit=x", "?limit"),
        ("limt=1", "?limt"),
        ("limit=1&limit=2", "?limit"),
        ("limit=", "?limit"),
    ):
        problem = is_problem(await client.get(f"/v1/demo/things/x?{query}"), 422, "validation_failed")
        assert problem["errors"][0]["pointer"] == pointer
    is_problem(await client.get("/v1/demo/things/x?limit=%ff"), 400, "validation_failed")
    is_problem(await client.post("/v1/demo/refuse?why=1"), 422, "validation_failed")


@pytest.mark.parametrize(("sent", "name"), [
    ("a%2Fb", "a/b"), ("a%2fb%3Fc", "a/b?c"), ("%C3%A9%F0%9F%98%80", "é😀"), ("a%20", "a "), ("%252F", "%2F"), ("a+b", "a+b"),
])  # fmt: skip
async def test_a_path_parameter_is_decoded_after_it_was_cut_out(service: Service, sent: str, name: str) -> None:
    client = await service.client()
    answer = await client.get(f"/v1/demo/things/{sent}")
    assert (answer.status_code, answer.json()["name"]) == (200, name)


async def test_a_path_that_does_not_fit_is_refused(service: Service) -> None:
    client = await service.client()
    is_problem(await client.get("/v1/demo/things/%FF"), 422, "validation_failed")
    problem = is_problem(await client.get("/v1/demo/things/" + "x" * 256), 422, "validation_failed")
    assert problem["errors"][0]["pointer"] == "{name}"
    is_problem(await client.get("/v1/demo/jobs/not-a-uuid"), 404, "not_found")
    answer = await client.get("/v1/demo/jobs/0198C5A2-5F00-7C3E-9D6B-0B5F3A8D1E2F")
    assert answer.json()["id"] == "0198c5a2-5f00-7c3e-9d6b-0b5f3a8d1e2f"


async def test_head_is_get_without_its_body(service: Service) -> None:
    client = await service.client()
    answer = await client.head("/v1/demo/things/x")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == str(len((await client.get("/v1/demo/things/x")).content))
    answer = await client.head("/v1/nowhere")
    assert answer.status_code == 404


@pytest.mark.parametrize("path", ["/livez", "/v1/nowhere", "/v1/demo/things/x", "/docs", "/plain/page"])
async def test_every_answer_has_the_security_headers_once(service: Service, path: str) -> None:
    answer = await (await service.client()).get(path)
    names = [name.lower() for name, _ in answer.headers.multi_items()]
    for name in (
        "x-content-type-options",
        "content-security-policy",
        "referrer-policy",
        "x-frame-options",
        "cache-control",
    ):
        assert names.count(name) == 1


async def test_a_page_keeps_its_own_policy(service: Service) -> None:
    answer = await (await service.client()).get("/plain/page")
    assert answer.headers["content-security-policy"] == "default-src 'self'"


async def test_a_body_too_large_is_refused_on_thin_and_plain_routes(start: Callable[..., Any]) -> None:
    async with start(max_body_bytes=65536) as service:
        client = await service.client()
        big = b'{"queue":"q","payload":"' + b"x" * 70_000 + b'"}'
        headers = {"content-type": "application/json"}

        async def chunks() -> Any:
            for index in range(0, len(big), 1000):
                yield big[index : index + 1000]

        for path in ("/v1/demo/echo", "/plain/body"):
            problem = is_problem(await client.post(path, content=big, headers=headers), 413, "payload_too_large")
            assert problem["max_bytes"] == 65536
            is_problem(await client.post(path, content=chunks(), headers=headers), 413, "payload_too_large")
        assert (await client.post("/plain/body", content=b"x" * 65536)).text == "65536"


async def test_one_value_too_large_is_413_with_its_pointer(service: Service) -> None:
    client = await service.client()
    body = {"jobs": [GOOD, {"queue": "q", "payload": "x" * 262_143}]}
    problem = is_problem(await client.post("/v1/demo/many", json=body), 413, "payload_too_large")
    assert problem["errors"][0]["pointer"] == "#/jobs/1/payload"


async def test_the_access_line_names_the_template_and_never_the_query(
    service: Service, captured_logs: list[dict[str, Any]]
) -> None:
    key = await service.key_of(Role.PRODUCER)
    client = await service.client(key)
    await client.post("/v1/demo/echo", json={"queue": "q", "payload": "hunter2"})
    await client.get("/v1/demo/things/hunter2?limit=3")
    await client.get("/v1/hunter2?hunter2=hunter2")
    await client.get("/livez")
    lines = [one for one in captured_logs if one["event"] == "request"]
    shown = [one for one in lines if one["level"] == "info"]
    assert [(one["method"], one["route"], one["status"]) for one in shown] == [
        ("POST", "/v1/demo/echo", 201),
        ("GET", "/v1/demo/things/{name}", 200),
        ("GET", "unmatched", 404),
    ]
    assert shown[0]["principal"] == key.split("_")[1]
    assert shown[0]["ms"] > 0
    assert "hunter2" not in str(captured_logs)


async def test_a_page_is_counted_by_its_template_too(service: Service, captured_logs: list[dict[str, Any]]) -> None:
    await (await service.client()).get("/plain/page")
    assert [one["route"] for one in captured_logs if one["event"] == "request"] == ["/plain/page"]
    assert 'route="/plain/page"' in (await (await service.client()).get("/metrics")).text
