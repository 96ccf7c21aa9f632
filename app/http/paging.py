"""Lists: `?limit=` and `?cursor=`. A cursor names the place after the last row of a page, and is bound to its filters.

It is base64url of a MessagePack array (version, keyset) behind an HMAC over the list's name, its filters and that array; the
HMAC's key is derived from the installation's. So a cursor cannot be made up, changed, or used with other filters, and it
tells nothing that its row did not tell. It is no authorisation.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import BeforeValidator, Field, StringConstraints

from app.errors import INVALID_CURSOR, Refusal
from app.http.call import Call
from app.jsontext import Params, Read, wrong

VERSION = 1
MAC_BYTES = 16
Row = TypeVar("Row")


def _digits(value: Any) -> Any:
    if isinstance(value, str) and not (value.isascii() and value.isdigit() and len(value) <= 9):
        raise wrong("must be an integer")
    return value


Limit = Annotated[int, Field(ge=1, le=500), BeforeValidator(_digits)]
Cursor = Annotated[str, StringConstraints(max_length=1024)]


class PageParams(Params):
    """Base of the parameters of every list; a list adds its filters."""

    limit: Limit = Field(50, description="How many at most; 1 to 500.")
    cursor: Cursor | None = Field(None, description="`next_cursor` of the page before, with the same filters.")


class PageRead(Read):
    """Base of the answer of every list; a list adds `items`."""

    next_cursor: str | None = Field(description="Pass it on as `cursor` for the next page; null on the last one.")


def place(call: Call[Any, Any], name: str, kinds: tuple[type, ...]) -> tuple[Any, ...] | None:
    """The keyset of the row after which the page begins; None for the first page. `name` is the list's own, `kinds` the
    types of the keyset's parts. Raises: Refusal `invalid_cursor`.
    """
    text: str | None = call.query.cursor
    if text is None:
        return None
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise _invalid() from None
    mac, packed = raw[:MAC_BYTES], raw[MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(call, name, packed)):
        raise _invalid()
    version, *keyset = msgspec.msgpack.decode(packed)  # ours, since the HMAC fits; perhaps of another release
    fits = len(keyset) == len(kinds) and all(isinstance(part, kind) for part, kind in zip(keyset, kinds, strict=True))
    if version != VERSION or not fits:
        raise _invalid()
    return tuple(keyset)


def page(
    call: Call[Any, Any],
    name: str,
    rows: Sequence[Row],
    view: Callable[[Row], Any],
    keyset: Callable[[Row], tuple[Any, ...]],
) -> dict[str, Any]:
    """The answer for rows of which one more than `limit` was read, to see whether there is a next page."""
    limit: int = call.query.limit
    shown = rows[:limit]
    following = cursor(call, name, keyset(shown[-1])) if len(rows) > limit else None
    return {"items": [view(row) for row in shown], "next_cursor": following}


def cursor(call: Call[Any, Any], name: str, keyset: tuple[Any, ...]) -> str:
    """The `next_cursor` of a page that ends at this keyset; for a list that may end a page before it is full."""
    packed = msgspec.msgpack.encode([VERSION, *keyset])
    return base64.urlsafe_b64encode(_mac(call, name, packed) + packed).rstrip(b"=").decode()


def _mac(call: Call[Any, Any], name: str, packed: bytes) -> bytes:
    key = hmac.digest(call.runtime.token_key, b"cursor", "sha256")
    filters = msgspec.json.encode(call.query.model_dump(mode="json", exclude={"limit", "cursor"}))
    parts = b"".join(len(part).to_bytes(4, "big") + part for part in (name.encode(), filters, packed))
    return hmac.digest(key, parts, "sha256")[:MAC_BYTES]


def _invalid() -> Refusal:
    return Refusal(INVALID_CURSOR, "This cursor does not fit this list and these filters.")
