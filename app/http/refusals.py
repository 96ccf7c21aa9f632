"""The answers of a route as the OpenAPI shows them: its successes, and its problems with an example for each code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from app.access import Role
from app.errors import (
    CONTRACT_VIOLATED,
    DATABASE_UNAVAILABLE,
    FORBIDDEN,
    INVALID_CURSOR,
    OVERLOADED,
    PAYLOAD_TOO_LARGE,
    UNAUTHENTICATED,
    UNSUPPORTED_MEDIA_TYPE,
    VALIDATION_FAILED,
    Code,
    Refusal,
)
from app.http.problem import MEDIA_TYPE, problem_of

PROBLEM_SCHEMA = {"$ref": "#/components/schemas/Problem"}
_EXAMPLE_ID = "0198c5a2-5f00-7c3e-9d6b-0b5f3a8d1e2f"
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait before the next try.", "schema": {"type": "integer"}}}


def responses_of(
    refuses: Sequence[Code],
    roles: Sequence[Role],
    body: type[BaseModel] | None,
    query: type[BaseModel] | None,
    also: Mapping[int, str] | None,
    answers: type[BaseModel],
) -> dict[int | str, dict[str, Any]]:
    """The `responses` of one route for FastAPI: further successes, the refusals grouped by status, and `default`."""
    found: dict[int | str, dict[str, Any]] = {
        status: {"description": text, "model": answers} for status, text in (also or {}).items()
    }
    by_status: dict[int, list[tuple[Code, int]]] = {}
    for code, status in _all_of(refuses, roles, body, query):
        by_status.setdefault(status, []).append((code, status))
    for status in sorted(by_status):
        found[status] = _problem_response([code for code, _ in by_status[status]], status)
    found["default"] = {
        "description": "Any other problem; `code` says which.",
        "content": {MEDIA_TYPE: {"schema": PROBLEM_SCHEMA}},
    }
    return found


def bare_responses(bare: Mapping[int, str] | None) -> dict[int | str, dict[str, Any]]:
    """Answers without a content, such as 304."""
    return {status: {"description": text} for status, text in (bare or {}).items()}


def with_headers(
    responses: dict[int | str, dict[str, Any]], status: int, headers: Mapping[str, str] | None
) -> dict[int | str, dict[str, Any]]:
    """The same, with headers that each success may carry (name -> description). `status`: the route's own success."""
    if headers:
        told = {name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()}
        for success in {status, *(other for other in responses if isinstance(other, int) and other < 400)}:
            responses.setdefault(success, {})["headers"] = told
    return responses


def _all_of(
    refuses: Sequence[Code], roles: Sequence[Role], body: type[BaseModel] | None, query: type[BaseModel] | None
) -> list[tuple[Code, int]]:
    """The route's own codes and those that its shape brings with it, each once, with the status that it has there."""
    listed = [(code, code.status) for code in refuses]
    if roles:
        listed += [(UNAUTHENTICATED, 401), (FORBIDDEN, 403), (OVERLOADED, 503), (DATABASE_UNAVAILABLE, 503)]
    if body is not None:
        listed += [(VALIDATION_FAILED, 400), (PAYLOAD_TOO_LARGE, 413), (UNSUPPORTED_MEDIA_TYPE, 415)]
    if body is not None or query is not None:
        listed.append((VALIDATION_FAILED, 422))
    if query is not None and "cursor" in query.model_fields:
        listed.append((INVALID_CURSOR, 400))
    return list(dict.fromkeys(listed))


def _problem_response(codes: Sequence[Code], status: int) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": "; ".join(f"`{code.name}`: {code.title[0].lower()}{code.title[1:]}" for code in codes) + ".",
        "content": {
            MEDIA_TYPE: {
                "schema": PROBLEM_SCHEMA,
                "examples": {code.name: {"summary": code.title, "value": example_of(code, status)} for code in codes},
            }
        },
    }
    if status in (423, 429, 503):
        response["headers"] = _RETRY_AFTER
    return response


def example_of(code: Code, status: int | None = None) -> dict[str, Any]:
    """A problem of this code as an example, for the OpenAPI and for the code's page."""
    extra: dict[str, Any] = {}
    if code.name == "reservation_lost":
        extra = {"reason": "superseded", "current_fence": 8}
    elif code is CONTRACT_VIOLATED:
        extra = {"rules": ["QUEUE003"]}
    elif code is FORBIDDEN:
        extra = {"required_roles": ["operator"]}
    refusal = Refusal(
        code, code.title + ".", extra, status=status, retry_after_seconds=1 if code.status in (423, 429, 503) else None
    )
    problem = problem_of(refusal, _EXAMPLE_ID)
    if code is VALIDATION_FAILED and refusal.http_status == 422:
        problem["errors"] = [{"pointer": "#/priority", "detail": "must be an integer"}]
    return problem
