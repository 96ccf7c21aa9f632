"""Which header fields a destination may add to a call, and how any text becomes a header value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

MAX_FIELDS = 32
MAX_VALUE = 4096
# They frame the message or speak to the next hop, so a wrong one could hide a second request inside the first.
_FRAMING = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_OURS = frozenset({"content-type", "idempotency-key"})
_OUR_PREFIXES = ("ce-", "webhook-")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}", re.ASCII)
_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?", re.ASCII)
# CloudEvents, HTTP binding 3.1.3.2: U+0021 to U+007E but for " and % stand for themselves
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


def problem_with(fields: Mapping[str, str], *, ours: bool = False) -> str | None:
    """Why these fields may not be sent, as a sentence without any value; None if they may.

    `ours` lets those pass that the service itself writes (`content-type`, `ce-*`, `webhook-*`, `idempotency-key`).
    """
    names = [name.lower() for name in fields]
    if len(names) != len(set(names)):
        return "must name each header once, whatever its case"
    if len(names) > MAX_FIELDS and not ours:
        return f"must be at most {MAX_FIELDS} headers"
    for name in names:
        if not _NAME.fullmatch(name):
            return "holds a name that is no header name"
        if name in _FRAMING:
            return f"must not set {name}: the service does"
        if not ours and (name in _OURS or name.startswith(_OUR_PREFIXES)):
            return f"must not set {name}: the service does"
    for name, value in fields.items():
        if len(value) > MAX_VALUE or not _VALUE.fullmatch(value):
            return f"must give {name.lower()} a value of visible ASCII, at most {MAX_VALUE} long, no spaces at its ends"
    return None


def header_text(value: str) -> str:
    """`value` as a header value, percent-encoded as CloudEvents has it; visible ASCII but for `"` and `%` is unchanged.

    Raises ValueError for a lone surrogate, which is no text.
    """
    return quote(value, safe=_PLAIN, errors="strict")
