"""Reading a request's body: its declared type, its size, and no more of it than is allowed."""

from __future__ import annotations

from starlette.types import Receive, Scope

from app.errors import PAYLOAD_TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, Refusal

_JSON = frozenset({b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8"})


class ClientGone(Exception):
    """The client hung up before its request was whole. Nobody is left to be answered."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first value of a header; `name` in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return value  # type: ignore[no-any-return]  # ASGI: pairs of bytes
    return None


def check_content_type(scope: Scope) -> None:
    """Raise Refusal `unsupported_media_type` unless the body is declared as JSON in UTF-8."""
    if header(scope, b"content-encoding") not in (None, b"identity"):
        raise Refusal(UNSUPPORTED_MEDIA_TYPE, "The body must not be encoded (Content-Encoding).")
    declared = header(scope, b"content-type")
    if declared in _JSON:
        return
    if declared is None:
        raise Refusal(UNSUPPORTED_MEDIA_TYPE, "The request has no header Content-Type: application/json.")
    media, *parameters = (part.strip().lower() for part in declared.split(b";"))
    json = media == b"application/json" or (media.startswith(b"application/") and media.endswith(b"+json"))
    if not json:
        raise Refusal(UNSUPPORTED_MEDIA_TYPE, "The header Content-Type does not name JSON.")
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"charset" and value.strip().strip(b'"') not in (b"utf-8", b"utf8", b"us-ascii"):
            raise Refusal(UNSUPPORTED_MEDIA_TYPE, "The body must be in UTF-8.")


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises: Refusal `payload_too_large` as soon as more than `limit` bytes came; ClientGone."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise too_large(limit)
        return body
    chunks: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = await receive()


def too_large(limit: int) -> Refusal:
    return Refusal(PAYLOAD_TOO_LARGE, f"The body has more than {limit} bytes.", extra={"max_bytes": limit})
