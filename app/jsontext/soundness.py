"""Whether a JSON text is one that Tenure takes, and if not, exactly why and where.

Taken: RFC 8259 in UTF-8 without a byte order mark, nested at most 256 deep, every string made of whole characters (no lone
surrogates), every number that has a fraction or an exponent within a double. Integers may have any length. The quick
verdict is one C call; only a text that fails it is looked at again, and only a refused one is scanned in Python.
"""

from __future__ import annotations

import json
import math
import re
from itertools import accumulate
from typing import Any, NoReturn

import msgspec

from app.errors import VALIDATION_FAILED, FieldError, Refusal

DEEPEST = 256
SCANNED_TOKENS = 50_000  # a pointer is looked for within so many tokens; past them the refusal names the whole value

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEP = [0] * 256
for _opening, _closing in (b"[]", b"{}"):
    _STEP[_opening], _STEP[_closing] = 1, -1
# left to right: an escaped backslash and a whole pair are used up, so what is left of \ud8.. and \udc.. stands alone
_WHOLE = re.compile(rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_LONE = re.compile(rb"\\u[dD][89a-fA-F]")
_TOKEN = re.compile(
    rb'[ \t\n\r]*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<punct>[\[\]{},:])|(?P<bare>[^ \t\n\r\[\]{},:"]+))', re.DOTALL
)


class _Unusable(ValueError):
    """A number or constant that no double can hold."""


def check_value(raw: bytes, pointer: str, depth: int) -> None:
    """Raise a Refusal unless `raw`, a syntactically complete value that begins `depth` levels deep, is sound.

    Raises: Refusal `validation_failed`, 400 for text that is not UTF-8, 422 for the rest.
    """
    if depth + raw.count(b"[") + raw.count(b"{") <= DEEPEST:
        try:
            msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            pass  # perhaps only an integer longer than msgspec reads
        else:
            return
    fault = _fault(raw, depth)
    if fault is not None:
        raise _refusal(raw, pointer, depth, *fault)


def explain(body: bytes) -> NoReturn:
    """Raise the Refusal for a whole body that a parser did not take: 400 if it is malformed, else 422 with a pointer."""
    fault = _fault(body, 0)
    if (
        fault is None
    ):  # our limits are met, so the parser met one of its own: nesting near 200, or integers past 4,300 digits
        detail = "is nested deeper, or holds a longer number, than a field of this request can take"
        raise Refusal(VALIDATION_FAILED, "The body is not valid.", errors=(FieldError("#", detail),))
    raise _refusal(body, "#", 0, *fault)


def _fault(raw: bytes, depth: int) -> tuple[str, str] | None:
    """What is wrong with `raw`: (kind, detail), or None. The kinds: text, syntax, depth, number, surrogate."""
    if raw.startswith(b"\xef\xbb\xbf"):
        return "text", "The body begins with a byte order mark; send plain UTF-8."
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return "text", "The body is not UTF-8."
    if depth + _depth(raw) > DEEPEST:
        return "depth", f"is nested more than {DEEPEST} levels deep"
    try:
        json.loads(text, parse_int=_any_integer, parse_float=_finite, parse_constant=_constant)
    except _Unusable:
        return "number", "must be a finite number that fits a double"
    except json.JSONDecodeError as wrong:
        return "syntax", f"The body is not JSON (line {wrong.lineno}, column {wrong.colno})."
    except RecursionError:
        return "depth", f"is nested more than {DEEPEST} levels deep"
    if _LONE.search(_WHOLE.sub(b"  ", raw)):
        return "surrogate", "must not hold half of a surrogate pair"
    return None


def _any_integer(_digits: str) -> int:
    return 0


def _finite(digits: str) -> float:
    if not math.isfinite(float(digits)):
        raise _Unusable
    return 0.0


def _constant(_name: str) -> NoReturn:
    raise _Unusable


def _depth(raw: bytes) -> int:
    """How deep the brackets outside strings nest."""
    brackets = _STRING.sub(b"", raw).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)


def _refusal(raw: bytes, pointer: str, depth: int, kind: str, detail: str) -> Refusal:
    if kind in ("text", "syntax"):
        return Refusal(VALIDATION_FAILED, detail, status=400)
    where = pointer + _locate(raw, kind, depth)
    return Refusal(VALIDATION_FAILED, "The body is not valid.", errors=(FieldError(where, detail),))


def escape(part: Any) -> str:
    """One step of a JSON Pointer; a long key is cut, since it is the caller's."""
    return str(part)[:64].replace("~", "~0").replace("/", "~1")


def _locate(raw: bytes, kind: str, depth: int) -> str:
    """The pointer, below `raw`, of the first fault of this kind; '' if it is not found within the budget."""
    path: list[str | int] = []  # the key or index at which each open container stands
    objects: list[bool] = []
    awaiting_key = False
    position = 0
    for _ in range(SCANNED_TOKENS):
        token = _TOKEN.match(raw, position)
        if token is None:
            break
        position = token.end()
        mark = token["punct"]
        if mark is None:
            at_fault = _token_is_at_fault(token["string"], token["bare"], kind)
            if awaiting_key and token["string"] is not None:
                if at_fault:
                    return _pointer(path[:-1])
                path[-1] = _key(token["string"])
                awaiting_key = False
            elif at_fault:
                return _pointer(path)
        elif mark in b"[{":
            if depth + len(path) >= DEEPEST:
                return _pointer(path)
            objects.append(mark == b"{")
            path.append(0)
            awaiting_key = mark == b"{"
        elif mark in b"]}" and path:
            path.pop()
            objects.pop()
            awaiting_key = False
        elif mark == b"," and path:
            awaiting_key = objects[-1]
            if not awaiting_key:
                path[-1] = int(path[-1]) + 1
    return ""


def _token_is_at_fault(string: bytes | None, bare: bytes | None, kind: str) -> bool:
    if kind == "surrogate":
        return string is not None and _LONE.search(_WHOLE.sub(b"  ", string)) is not None
    if kind == "number" and bare is not None:
        if bare in (b"NaN", b"Infinity", b"-Infinity"):
            return True
        try:
            return bare.strip(b"-").isdigit() is False and not math.isfinite(float(bare))
        except ValueError:
            return False
    return False


def _key(string: bytes) -> str:
    try:
        return str(json.loads(string))
    except ValueError:
        return "?"


def _pointer(path: list[str | int]) -> str:
    return "".join("/" + escape(part) for part in path)
