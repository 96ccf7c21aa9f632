"""Small HTML pages, made without a template engine: everything that goes in is escaped here."""

from __future__ import annotations

from html import escape

from pydantic import RootModel

PAGE_CSP = "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


class TextRead(RootModel[str]):
    """Plain text."""


def html_page(title: str, body: str) -> bytes:
    """A whole page. `title` is escaped here, `body` is HTML that its maker has escaped."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · Tenure</title><link rel=stylesheet href=/docs/static/page.css>"
        f"<main><h1>{escape(title)}</h1>{body}</main></html>"
    ).encode()


def accepts_html(accept: bytes | None) -> bool:
    """Whether the caller prefers HTML over JSON: a browser names `text/html`, and programs rarely do."""
    if accept is None:
        return False
    html = json = -1.0
    for part in accept.decode("latin-1").split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        if media in ("text/html", "application/xhtml+xml"):
            html = max(html, quality)
        elif media.endswith(("/json", "+json")):
            json = max(json, quality)
    return html > 0 and html >= json
