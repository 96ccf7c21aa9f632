"""Which URLs may be registered, and called. One strict pattern: what two parsers could read differently is refused.

The address behind a name is not judged here but at each connection (`backend`): what a name means may change.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address

from app.outgoing.addresses import Targets, ends_in_number

MAX_LENGTH = 2048
_URL = re.compile(
    r"(?i:https?)://(?P<host>\[[^\]/?@]*\]|[^\[\]/:?@]*)(?::(?P<port>[^/?@]*))?(?P<rest>[/?].*)?", re.ASCII
)
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", re.ASCII)
_REST = re.compile(r"(?:[A-Za-z0-9\-._~:/?@!$&'()*+,;=\[\]]|%[0-9A-Fa-f]{2})*", re.ASCII)


def problem_with(url: str, targets: Targets | None = None) -> str | None:
    """Why this URL may not be called, as a sentence for a 422 that does not repeat it; None if it may.

    With `targets`, an address that stands in the URL itself is judged too. A name is judged when it is called.
    """
    if len(url) > MAX_LENGTH:
        return f"must have at most {MAX_LENGTH} characters"
    if not url.isascii():
        return "must be ASCII: write an international host name in its xn-- form, and percent-encode the rest"
    if not url.isprintable() or " " in url:
        return "must not hold spaces or control characters: percent-encode them"
    if "\\" in url:
        return "must not hold a backslash"
    if "#" in url:
        return "must have no fragment (#…): it would never be sent"
    found = _URL.fullmatch(url)
    if found is None:
        return _what_is_missing(url)
    if not _REST.fullmatch(found["rest"] or ""):
        return "holds a character that must be percent-encoded, or a % without two hexadecimal digits"
    if found["port"] is not None and not (
        re.fullmatch(r"[0-9]{1,5}", found["port"]) and 1 <= int(found["port"]) <= 65535
    ):
        return "must have a port from 1 to 65535, or none"
    return _problem_with_host(found["host"], targets)


def _what_is_missing(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    if not mark or scheme.lower() not in ("http", "https"):
        return "must begin with https:// or http://"
    if "@" in re.split(r"[/?]", rest, maxsplit=1)[0]:
        return "must hold no user name or password: use a header"
    return "must be a URL like https://host:port/path?query"


def _problem_with_host(host: str, targets: Targets | None) -> str | None:
    if not host:
        return "must name a host"
    if host.startswith("["):
        literal = host[1:-1]
        if "%" in literal:
            return "must hold no IPv6 zone"
        try:
            IPv6Address(literal)
        except ValueError:
            return "must have an IPv6 address between [ and ]"
    else:
        literal = host
        if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.removesuffix(".").split(".")):
            return "must name a host by letters, digits, hyphens and dots"
        if not ends_in_number(host):
            return None
        try:
            IPv4Address(literal)
        except ValueError:
            return "must write an IPv4 address as four decimal numbers, like 192.0.2.1"
    if targets is not None and not targets.allows(literal, (literal,)):
        return "names an address that may not be called; an operator may allow it by TENURE_DELIVERY_ALLOWED_TARGETS"
    return None
