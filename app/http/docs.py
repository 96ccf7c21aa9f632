"""The pages that explain the service: OpenAPI documents, Swagger UI from our own copy, problem pages, `/llms.txt`.

Everything comes from the declarations of the routes and from the table of codes; nothing is written twice, and nothing is
loaded from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec
from pydantic import Field

from app.errors import CODES, NOT_FOUND, Code, not_found
from app.http.bodies import header
from app.http.call import Answer, Call
from app.http.openapi import document_30
from app.http.pages import PAGE_CSP, TextRead, accepts_html, html_page
from app.http.problem import BY_NAME
from app.http.reference import reference
from app.http.refusals import example_of
from app.http.routing import OPEN, thin_router
from app.jsontext import Read

DOCS_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
ASSETS = {
    "docs.js": "text/javascript",
    "page.css": "text/css",
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
}
DAY = {"cache-control": "public, max-age=86400"}
SHORTLY = {"cache-control": "public, max-age=300"}

router = thin_router(tags=["operations"])


class OpenApiRead(Read):
    """An OpenAPI document."""

    openapi: str


class CodeRead(Read):
    """What a problem code means."""

    code: str
    status: int = Field(description="The usual HTTP status.")
    title: str
    retryable: bool
    advice: str = Field(description="What to do next.")
    example: dict[str, Any]


class CodesRead(Read):
    """Every problem code."""

    items: list[CodeRead]


@router.get("/openapi.json", name="get_openapi", requires=OPEN, answers=OpenApiRead)
async def get_openapi(call: Call) -> Answer:
    """Get this document (OpenAPI 3.1)."""
    return Answer(_kept(call, "3.1"), headers=SHORTLY)


@router.get("/openapi-3.0.json", name="get_openapi_30", requires=OPEN, answers=OpenApiRead)
async def get_openapi_30(call: Call) -> Answer:
    """Get this document as OpenAPI 3.0.3, for generators that know no 3.1."""
    return Answer(_kept(call, "3.0"), headers=SHORTLY)


@router.get("/llms.txt", name="get_llms_txt", requires=OPEN, answers=TextRead, media_type="text/plain")
async def get_llms_txt(call: Call) -> Answer:
    """Get a compact reference for coding assistants (Markdown)."""
    return Answer(_kept(call, "llms"), headers=SHORTLY, media_type="text/plain; charset=utf-8")


def _kept(call: Call, kind: str) -> bytes:
    """A document of this application, made once."""
    app = call.scope["app"]
    if not hasattr(app.state, "documents"):
        newest = app.openapi()
        app.state.documents = {
            "3.1": msgspec.json.encode(newest),
            "3.0": msgspec.json.encode(document_30(newest)),
            "llms": reference(newest).encode(),
        }
    return app.state.documents[kind]  # type: ignore[no-any-return]  # set above


# -- pages -------------------------------------------------------------------------------------------------------------


@router.get("/docs", name="show_docs", requires=OPEN, answers=TextRead, media_type="text/html")
async def show_docs(_call: Call) -> Answer:
    """Show the interactive documentation."""
    page = (
        b'<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width, initial-scale=1">'
        b"<title>API \xc2\xb7 Tenure</title><link rel=icon href=data:,>"  # or the browser asks for one, and is told 404
        b"<link rel=stylesheet href=/docs/static/swagger-ui.css><div id=swagger-ui></div>"
        b"<script src=/docs/static/swagger-ui-bundle.js></script><script src=/docs/static/docs.js></script></html>"
    )
    return Answer(page, media_type="text/html; charset=utf-8", headers={"content-security-policy": DOCS_CSP})


@router.get("/docs/static/{asset}", name="get_docs_asset", requires=OPEN, answers=TextRead, include_in_schema=False)
async def get_docs_asset(call: Call) -> Answer:
    """A file of the interactive documentation."""
    name = call.path["asset"]
    if name not in ASSETS:
        raise not_found("file")
    return Answer(_asset(name), media_type=f"{ASSETS[name]}; charset=utf-8", headers=DAY, quiet=True)


@cache
def _asset(name: str) -> bytes:
    return files("app.http").joinpath("static", name).read_bytes()


@router.get("/problems", name="list_problems", requires=OPEN, answers=CodesRead)
async def list_problems(call: Call) -> Answer:
    """List every problem code. HTML for browsers."""
    if not accepts_html(header(call.scope, b"accept")):
        return Answer(
            {"items": [_code(code, example_of(code)) for code in CODES]}, headers={**SHORTLY, "vary": "accept"}
        )
    rows = "".join(
        f"<tr><td><a href=/problems/{code.name}><code>{code.name}</code></a><td>{code.status}<td>{escape(code.title)}"
        for code in CODES
    )
    return _page("Problems", f"<table><tr><th>code<th>status<th>meaning{rows}</table>")


@router.get("/problems/{code}", name="get_problem", requires=OPEN, answers=CodeRead, refuses=(NOT_FOUND,))
async def get_problem(call: Call) -> Answer:
    """Explain a problem code, or a rule of the reliability standard: what it means and what to do. HTML for browsers."""
    name = call.path["code"]
    page = call.scope["app"].state.pages.get(name)
    code = BY_NAME.get(name) if page is None else page[0]
    if code is None:
        raise not_found("problem code")
    example = example_of(code) if page is None else page[1]
    if not accepts_html(header(call.scope, b"accept")):
        return Answer(_code(code, example), headers={**SHORTLY, "vary": "accept"})
    retry = "The same request may succeed later." if code.retryable else "The same request will not succeed by itself."
    kind = f"HTTP status {code.status}. {retry}" if page is None else "a rule of the reliability standard."
    shown = msgspec.json.format(msgspec.json.encode(example), indent=2).decode()
    return _page(
        code.title,
        (
            f"<p><code>{code.name}</code>, {kind}</p><p>{_marked(code.advice)}</p>"
            f"<pre>{escape(shown)}</pre><p><a href=/problems>All problems</a></p>"
        ),
    )


def _page(title: str, body: str) -> Answer:
    return Answer(
        html_page(title, body),
        media_type="text/html; charset=utf-8",
        headers={**SHORTLY, "content-security-policy": PAGE_CSP, "vary": "accept"},
    )


def _marked(text: str) -> str:
    """Escape, and turn `back ticks` into code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces))


def _code(code: Code, example: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "code": code.name,
        "status": code.status,
        "title": code.title,
        "retryable": code.retryable,
        "advice": code.advice,
        "example": example,
    }
