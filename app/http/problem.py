"""Problem details (RFC 9457): the one shape of every error that leaves Tenure, for a whole answer or one item of a batch.

`type` is a path of this service that explains the code. Extension members come from `Refusal.extra`; nothing that a caller
sent gets into a problem, except the names of fields in pointers.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from app.errors import CODES, INTERNAL, METHOD_NOT_ALLOWED, UNAUTHENTICATED, Code, Refusal

MEDIA_TYPE = "application/problem+json"
BY_NAME: dict[str, Code] = {code.name: code for code in CODES}
_encode = msgspec.json.Encoder().encode


class ProblemField(BaseModel):
    """One fault in what was sent."""

    pointer: Annotated[
        str,
        Field(
            description="JSON Pointer into the body (`#/jobs/0/priority`); `?name` for a query parameter, `{name}` for a part "
            "of the path."
        ),
    ]
    detail: Annotated[str, Field(description="What is wanted there.")]


class Problem(BaseModel):
    """Why a request was refused (RFC 9457). Further members may stand beside these; ignore those that you do not know."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[
        str, Field(description="Path of the page that explains this code.", examples=["/problems/not_found"])
    ]
    title: Annotated[str, Field(description="The same for every problem of this code.")]
    status: Annotated[int, Field(description="The HTTP status.", ge=400, le=599)]
    detail: Annotated[str, Field(description="What happened here, for people. Do not parse it.")]
    code: Annotated[str, Field(description="What programs switch on. New codes may come.", examples=["not_found"])]
    retryable: Annotated[bool, Field(description="Whether the very same request may succeed later.")]
    request_id: Annotated[str, Field(description="Names this request in the logs.")]
    errors: Annotated[
        list[ProblemField], Field(description="Each fault in the request; only for 4xx about its content.")
    ] = []
    reason: Annotated[str | None, Field(description="Narrows the code down, as its page says.")] = None
    rules: Annotated[list[str] | None, Field(description="For `contract_violated`: the rules that are broken.")] = None
    current_fence: Annotated[int | None, Field(description="For `reservation_lost`: the fence that counts now.")] = None


def problem_of(refusal: Refusal, request_id: str) -> dict[str, Any]:
    """The problem as plain values, for a whole answer or the `problem` of a batch result."""
    code = refusal.code
    problem: dict[str, Any] = {
        "type": f"/problems/{code.name}",
        "title": code.title,
        "status": refusal.http_status,
        "detail": refusal.detail,
        "code": code.name,
        "retryable": code.retryable,
        "request_id": request_id,
    }
    if refusal.errors:
        problem["errors"] = [{"pointer": one.pointer, "detail": one.detail} for one in refusal.errors]
    for name, value in refusal.extra.items():
        problem.setdefault(name, value)
    if refusal.retry_after_seconds is not None:
        problem.setdefault("retry_after_seconds", refusal.retry_after_seconds)
    return problem


def problem_bytes(refusal: Refusal, request_id: str) -> bytes:
    return _encode(problem_of(refusal, request_id))


def problem_headers(refusal: Refusal) -> dict[str, str]:
    """The headers that go with a problem: `Retry-After`, `WWW-Authenticate`, and those that the refusal names itself."""
    headers = {"content-type": MEDIA_TYPE, "cache-control": "no-store"}
    if refusal.retry_after_seconds is not None:
        headers["retry-after"] = str(refusal.retry_after_seconds)
    if refusal.code is UNAUTHENTICATED:
        headers["www-authenticate"] = 'Bearer realm="tenure"'
    if refusal.code is METHOD_NOT_ALLOWED:
        headers["allow"] = ", ".join(refusal.extra.get("allow", ()))
    return headers


def internal() -> Refusal:
    """Our own failure. What failed stands in the log under the request id, never in the answer."""
    return Refusal(INTERNAL, "Tenure failed at this request; it was logged under this request id.")
