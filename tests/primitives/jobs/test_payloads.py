"""Payload schemas, pure: what fits, what is told of what does not, and what no schema can make the service do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from app.errors import FieldError
from app.primitives.jobs.model.payloads import LONGEST_DETAIL, MOST_FAULTS, PayloadSchema, check_schema

SECRET = "hunter2-submitted-value"


def faults(schema: Any, payload: bytes | Any) -> list[tuple[str, str]]:
    text = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return [(one.pointer, one.detail) for one in PayloadSchema(json.dumps(schema).encode()).faults(text)]


def test_a_fault_is_told_by_its_pointer_and_the_schemas_words() -> None:
    schema = {
        "type": "object",
        "required": ["items"],
        "properties": {
            "items": {
                "type": "array",
                "items": {"type": "object", "properties": {"qty": {"type": "integer", "minimum": 1}}},
            },
            "a/b~c": {"type": "boolean"},
        },
        "additionalProperties": False,
    }
    assert faults(schema, {"items": [{"qty": 1}]}) == []
    assert faults(schema, {}) == [("#/payload", 'must have the member "items"')]
    assert faults(schema, []) == [("#/payload", "must be of type object")]
    assert faults(schema, {"items": [{}, {}, {}, {"qty": 0}]}) == [("#/payload/items/3/qty", "must be at least 1")]
    assert faults(schema, {"items": [], "a/b~c": 1}) == [("#/payload/a~1b~0c", "must be of type boolean")]
    assert faults(schema, {"items": [], "x": 1, "y": 2}) == [
        ("#/payload/x", "is not known to the schema"),
        ("#/payload/y", "is not known to the schema"),
    ]


KEYWORDS: list[tuple[Any, Any, str]] = [
    ({"type": ["string", "null"]}, 1, "must be of type null or string"),
    ({"const": 5}, SECRET, "must be 5"),
    ({"enum": ["a", 2]}, SECRET, 'must be one of ["a", 2]'),
    ({"pattern": "^a+$"}, SECRET, "must match ^a+$"),
    ({"format": "date-time"}, SECRET, "must have the format date-time"),
    ({"maxLength": 2}, SECRET, "must have at most 2 characters"),
    ({"minLength": 99}, SECRET, "must have at least 99 characters"),
    ({"multipleOf": 0.5}, 0.75, "must be a multiple of 0.5"),
    ({"exclusiveMaximum": 5}, 5, "must be less than 5"),
    ({"exclusiveMinimum": 5}, 5, "must be greater than 5"),
    ({"maximum": 5}, 6, "must be at most 5"),
    ({"minItems": 2}, [SECRET], "must have at least 2 entries"),
    ({"maxItems": 0}, [SECRET], "must have at most 0 entries"),
    ({"uniqueItems": True}, [SECRET, SECRET], "must not have an entry twice"),
    ({"contains": {"type": "null"}}, [SECRET], "must have an entry that fits the schema's `contains`"),
    ({"minProperties": 2}, {SECRET: 1}, "must have at least 2 members"),
    ({"maxProperties": 0}, {SECRET: 1}, "must have at most 0 members"),
    ({"dependentRequired": {"a": ["b"]}}, {"a": SECRET}, 'must have the member "b"'),
    ({"propertyNames": {"maxLength": 3}}, {SECRET: 1}, "has a member whose name does not fit: it must have at most 3"),
    ({"anyOf": [{"type": "null"}, {"const": 3}]}, SECRET, "must fit one of the schema's alternatives"),
    ({"oneOf": [{"type": "string"}, {"minLength": 1}]}, SECRET, "must fit exactly one of the schema's alternatives"),
    ({"not": {"type": "string"}}, SECRET, "must not fit the schema's `not`"),
    (False, SECRET, "is not allowed here"),
    ({"additionalProperties": False}, {SECRET: 1}, "must not have members"),
    ({"properties": {"additionalProperties": False}}, {"additionalProperties": SECRET}, "is not allowed here"),
    ({"prefixItems": [{"type": "null"}]}, [SECRET], "must be of type null"),
]


@pytest.mark.parametrize(("schema", "payload", "detail"), KEYWORDS, ids=lambda one: str(one)[:40])
def test_every_keyword_tells_what_is_wanted_and_never_what_was_sent(schema: Any, payload: Any, detail: str) -> None:
    ((_, told),) = faults(schema, payload)
    assert told.startswith(detail)
    assert SECRET not in told


def test_members_and_entries_that_no_keyword_knows_are_told_without_their_values() -> None:
    assert faults({"properties": {"a": True}, "unevaluatedProperties": False}, {"a": 1, "b": 2}) == [
        ("#/payload/b", "is not known to the schema")
    ]
    assert faults({"prefixItems": [True], "unevaluatedItems": False}, [1, SECRET]) == [
        ("#/payload", "has entries that are not known to the schema")
    ]


def test_at_most_twenty_faults_are_told_and_a_long_schema_is_cut() -> None:
    assert len(faults({"items": {"type": "string"}}, list(range(500)))) == MOST_FAULTS
    assert (
        len(faults({"properties": {"a": {}}, "additionalProperties": False}, {str(number): 1 for number in range(500)}))
        == MOST_FAULTS
    )
    ((_, told),) = faults({"enum": ["x" * 5000]}, 1)
    assert len(told) < LONGEST_DETAIL + 50


NUMBERS: list[tuple[bytes, bytes, bool]] = [
    (b'{"maximum": 12345678901234567890123}', b"12345678901234567890123", True),
    (b'{"maximum": 12345678901234567890123}', b"12345678901234567890124", False),
    (b'{"const": 9007199254740993}', b"9007199254740992", False),
    (b'{"const": 9007199254740993}', b"9007199254740993.0", True),
    (b'{"multipleOf": 0.01}', b"19.99", True),
    (b'{"maximum": 0.1}', b"0.1000000000000000000000001", False),
    (b'{"type": "integer"}', b"1.0", True),
    (b'{"type": "integer"}', b"1.5", False),
    (b'{"type": "integer"}', b"1e40", True),
    (b'{"minimum": 5}', b"9" * 6000, True),
    (b'{"minimum": 5}', b"-" + b"9" * 6000, False),
    (b'{"type": "string"}', b"9" * 6000, False),
]


@pytest.mark.parametrize(("schema", "payload", "fits"), NUMBERS, ids=lambda one: repr(one)[:40])
def test_numbers_are_held_against_the_schema_exactly_as_they_were_sent(
    schema: bytes, payload: bytes, fits: bool
) -> None:
    found = PayloadSchema(schema).faults(payload)
    assert (found == ()) is fits
    assert all(b"999" not in one.detail.encode() for one in found)


def test_a_payload_that_means_two_things_fits_no_schema() -> None:
    """Which of two members counts is up to each reader: the one that was judged may not be the one that is used."""
    twice = b'{"a": {"role": "user", "role": "admin"}}'
    assert PayloadSchema(b"true").faults(twice) == (
        FieldError("#/payload", "must not name a member of an object twice"),
    )


def test_a_fault_in_what_is_nested_past_the_librarys_limit_is_a_refusal_and_not_an_error() -> None:
    deep = b"[" * 256 + b"]" * 256
    ((pointer, told),) = faults({"type": "object"}, deep)
    assert (pointer, "too deep" in told) == ("#/payload", True)
    assert faults({"type": "array"}, deep) == []


def test_a_pattern_that_would_backtrack_for_ever_is_answered_in_time_that_grows_with_the_text() -> None:
    """`^(a+)+$` needs 2^n steps of an engine that backtracks; a hundred thousand letters would outlast the universe."""
    assert faults({"pattern": "^(a+)+$"}, "a" * 100_000 + "!") == [("#/payload", "must match ^(a+)+$")]
    assert faults({"patternProperties": {"^(a|a)*$": {"type": "null"}}}, {"a" * 50_000 + "!": 1}) == []


@pytest.mark.parametrize("pattern", [r"(a)\\1", "(?=a)b", "(?<!a)b", "(", "a{1,100000}{1,100000}"])
def test_a_pattern_that_needs_backtracking_is_no_usable_schema(pattern: str) -> None:
    schema = f'{{"properties": {{"n": {{"pattern": "{pattern}"}}}}}}'.encode()
    told = check_schema(schema)
    assert told is not None
    assert "at /properties/n/pattern: must be a pattern without look-around" in told


UNUSABLE: list[tuple[bytes, str]] = [
    (b"", "is not JSON"),
    (b'{"a":', "is not JSON"),
    (b"[]", "at its root: must be of type boolean or object"),
    (b"3", "at its root: must be of type boolean or object"),
    (b'{"type": "hunter2"}', "at /type: must fit one of"),
    (b'{"minimum": "hunter2"}', "at /minimum: must be of type number"),
    (b'{"$ref": "#/$defs/hunter2"}', "leads to nothing within it"),
    (b'{"$schema": "http://json-schema.org/draft-07/schema#"}', "must be JSON Schema 2020-12"),
    (b'{"$schema": 3}', "must be JSON Schema 2020-12"),
    (b"\xff", "is not JSON"),
    (b"[" * 100_000, "is not JSON"),
]


@pytest.mark.parametrize(("schema", "why"), UNUSABLE, ids=lambda one: repr(one)[:40])
def test_what_is_no_usable_schema_is_told_without_its_values(schema: bytes, why: str) -> None:
    told = check_schema(schema)
    assert told is not None
    assert why in told
    assert "hunter2" not in told
    assert "\n" not in told


@pytest.mark.parametrize(
    "schema",
    [
        b"true",
        b"{}",
        b'{"$schema": "https://json-schema.org/draft/2020-12/schema"}',
        b'{"$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a"}',
        b'{"$id": "https://example.org/a", "$ref": "#/$defs/b", "$defs": {"b": {"format": "int32"}}}',
    ],
)
def test_a_usable_schema_is_taken(schema: bytes) -> None:
    assert check_schema(schema) is None


def test_a_schema_that_this_release_cannot_use_fits_nothing_and_says_so() -> None:
    """It was put by another release: an enqueue is refused, and nothing else of its batch is."""
    ((pointer, told),) = ((one.pointer, one.detail) for one in PayloadSchema(b'{"type": "novelty"}').faults(b"1"))
    assert (pointer, told) == ("#/payload", "cannot be judged: this release cannot use the contract's schema")


@pytest.fixture
def listening() -> Iterator[tuple[str, list[str]]]:
    """The address of a server that gives a schema to whoever asks, and the paths that were asked for."""
    asked: list[str] = []

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"true")

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join(10)
    server.server_close()


def test_nothing_is_ever_fetched_for_a_schema(listening: tuple[str, list[str]], tmp_path: Any) -> None:
    address, asked = listening
    file = tmp_path / "schema.json"
    file.write_text("true")
    for reference in (f"{address}/a", file.as_uri(), "other.json", "urn:x"):
        for keyword in ("$ref", "$dynamicRef"):
            schema = json.dumps({"properties": {"n": {keyword: reference}}}).encode()
            told = check_schema(schema)
            assert told == "has a reference that leads to nothing within it; nothing is fetched", (keyword, reference)
            assert PayloadSchema(schema).faults(b"{}") != ()
    based = json.dumps({"$id": f"{address}/base", "properties": {"n": {"$ref": "other"}}}).encode()
    assert check_schema(based) is not None
    assert asked == []
    import urllib.request

    with urllib.request.urlopen(f"{address}/proof", timeout=10) as answer:
        assert answer.read() == b"true", "the server would have answered"
    assert asked == ["/proof"]
