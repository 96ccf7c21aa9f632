"""Payload schemas: JSON Schema 2020-12, compiled once, and faults told without a submitted value. Pure.

Nothing is ever fetched: a `$ref` must lead to a place in the schema itself or to a published meta-schema that the library
brings along. Patterns run on an engine whose time grows with the text alone (no look-around, no back-references). Numbers
are compared exactly, however long they are. A known `format` is enforced; an unknown one says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import jsonschema_rs

from app.errors import FieldError
from app.jsontext import escape

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MOST_FAULTS = 20
LONGEST_DETAIL = 200
LONGEST_INTEGER = 4000  # digits; a little below where Python stops reading them
ROOT = "#/payload"

_TOO_DEEP = "is nested too deep, or holds a number too long, to be held against the schema"


class _Ambiguous(ValueError):
    """An object names a member twice: which of the two counts is up to each reader, so no schema can vouch for it."""


class PayloadSchema:
    """One compiled schema. One that this release cannot compile (it was put by another) fits nothing, and says so."""

    __slots__ = ("_validator",)

    def __init__(self, schema: bytes) -> None:
        self._validator = None if check_schema(schema) is not None else _compile(schema)

    def faults(self, payload: bytes) -> tuple[FieldError, ...]:
        """What does not fit, at most `MOST_FAULTS`; pointers lead into a request that has the payload under `payload`.

        Details are written from the schema alone. A pointer names the members that lead to the fault, as everywhere.
        """
        if self._validator is None:
            return (FieldError(ROOT, "cannot be judged: this release cannot use the contract's schema"),)
        try:
            value = decode(payload)
            return () if self._validator.is_valid(value) else tuple(_first(self._validator.iter_errors(value)))
        except _Ambiguous:
            return (FieldError(ROOT, "must not name a member of an object twice"),)
        except (ValueError, RecursionError):  # a limit of the library or of Python: not valid, for want of a proof
            return (FieldError(ROOT, _TOO_DEEP),)


def check_schema(schema: bytes) -> str | None:
    """Why these bytes are no schema that can be enforced, in one line without their values; None if they are one."""
    try:
        document = json.loads(schema)
    except (ValueError, RecursionError):
        return "is not JSON"
    if isinstance(document, dict) and str(document.get("$schema", DIALECT)).rstrip("#") != DIALECT:
        return f"must be JSON Schema 2020-12 ({DIALECT})"
    try:
        _compile(schema)
    except jsonschema_rs.ValidationError as fault:
        place = "".join(f"/{escape(step)}" for step in fault.instance_path) or "its root"
        if fault.kind.name == "$ref":
            return "has a reference that leads to nothing within it; nothing is fetched"
        return f"is not a usable JSON Schema 2020-12; at {place}: {next(_told(fault.kind))[1]}"
    except (ValueError, jsonschema_rs.ReferencingError, RecursionError):
        return "is not a usable JSON Schema 2020-12"
    return None


def _compile(schema: bytes) -> Any:
    return jsonschema_rs.Draft202012Validator(
        schema.decode("utf-8"),
        pattern_options=jsonschema_rs.RegexOptions(),
        validate_formats=True,
        offline=True,
    )


# -- the payload as it was sent --------------------------------------------------------------------------------------------


def decode(payload: bytes) -> Any:
    """The value with its numbers exact. Raises: ValueError for a member that is named twice, or RecursionError."""
    return json.loads(payload, parse_int=_integer, parse_float=Decimal, object_pairs_hook=_members)


def _integer(digits: str) -> int | Decimal:
    """Python's own integers end where reading them would cost too much; the library takes either."""
    return int(digits) if len(digits) <= LONGEST_INTEGER else Decimal(digits)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Ambiguous
    return members


# -- faults, in the words of the schema ------------------------------------------------------------------------------------


def _first(errors: Iterator[Any]) -> Iterator[FieldError]:
    left = MOST_FAULTS
    for error in errors:
        place = "".join(f"/{escape(step)}" for step in error.instance_path)
        for more, detail in _closed(error) or _told(error.kind):
            if left == 0:
                return
            yield FieldError(ROOT + place + more, detail)
            left -= 1


def _closed(error: Any) -> list[tuple[str, str]]:
    """An object that may have no member at all is reported as if the object itself were not allowed."""
    path = error.schema_path
    if error.kind.name == "falseSchema" and path[-1:] == ["additionalProperties"] and path[-2:-1] != ["properties"]:
        return [("", "must not have members")]
    return []


def _told(kind: Any) -> Iterator[tuple[str, str]]:
    """(what follows in the pointer, detail) for one fault."""
    told: Mapping[str, Any] = kind.as_dict()
    name: str = kind.name
    if name in ("additionalProperties", "unevaluatedProperties"):
        for step in told["unexpected"]:
            yield f"/{escape(step)}", "is not known to the schema"
    elif name == "propertyNames":
        yield "", f"has a member whose name does not fit: it {next(_told(told['error'].kind))[1]}"
    else:
        write = _WORDS.get(name)
        yield "", f"does not fit the schema's `{name}`" if write is None else write(told)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_DETAIL else text[:LONGEST_DETAIL] + "…"


def _limit(text: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda told: text.format(_shown(told["limit"]))


_FORMATS = {"regex": "must be a pattern without look-around and back-references"}

_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "type": lambda told: f"must be of type {' or '.join(sorted(told['types']))}",
    "required": lambda told: f"must have the member {_shown(told['property'])}",
    "enum": lambda told: f"must be one of {_shown(told['options'])}",
    "const": lambda told: f"must be {_shown(told['expected_value'])}",
    "pattern": lambda told: f"must match {told['pattern'][:LONGEST_DETAIL]}",
    "format": lambda told: _FORMATS.get(told["format"], f"must have the format {told['format'][:LONGEST_DETAIL]}"),
    "multipleOf": lambda told: f"must be a multiple of {_shown(told['multiple_of'])}",
    "minimum": _limit("must be at least {}"),
    "maximum": _limit("must be at most {}"),
    "exclusiveMinimum": _limit("must be greater than {}"),
    "exclusiveMaximum": _limit("must be less than {}"),
    "minLength": _limit("must have at least {} characters"),
    "maxLength": _limit("must have at most {} characters"),
    "minItems": _limit("must have at least {} entries"),
    "maxItems": _limit("must have at most {} entries"),
    "minProperties": _limit("must have at least {} members"),
    "maxProperties": _limit("must have at most {} members"),
    "uniqueItems": lambda _: "must not have an entry twice",
    # what the library calls unexpected here are the entries themselves, which are not ours to tell
    "unevaluatedItems": lambda _: "has entries that are not known to the schema",
    "contains": lambda _: "must have an entry that fits the schema's `contains`",
    "anyOf": lambda _: "must fit one of the schema's alternatives (`anyOf`)",
    "oneOf": lambda _: "must fit exactly one of the schema's alternatives (`oneOf`)",
    "not": lambda _: "must not fit the schema's `not`",
    "falseSchema": lambda _: "is not allowed here",
}
