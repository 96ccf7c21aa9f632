"""Digests of keys and requests."""

from __future__ import annotations

import json

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from app.errors import Refusal
from app.primitives.idempotency.model import fingerprint_of, key_digest, request_digest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ('{"a":1,"b":2}', '{ "b" : 2 , "a" : 1 }'),
        ("1", "1.0"),
        ("1", "1e0"),
        ("-0", "0"),
        ("0.1", "0.10"),
        ('"é"', '"\\u00e9"'),
        ('"/"', '"\\/"'),
        ("12345678901234567890", "12345678901234567890"),
    ],
)
def test_spelling_does_not_count(one: str, same: str) -> None:
    assert request_digest(one.encode()) == request_digest(same.encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[1,2]", "[2,1]"),
        ("1", '"1"'),
        ("null", "false"),
        ("{}", "[]"),
        ('"é"', '"e\\u0301"'),
        ('"a"', '"A"'),
        ('{"a":null}', "{}"),
        ("9007199254740993", "9007199254740992"),
        ("1234567890123456789", "1234567890123456788"),
        ("-9007199254740993", "9007199254740993"),
    ],
)
def test_content_counts_to_the_last_digit(one: str, other: str) -> None:
    """A double does not tell the last pairs apart: whoever digests ids of 64 bits as doubles replays one order for another."""
    assert request_digest(one.encode()) != request_digest(other.encode())


def test_a_member_that_is_named_twice_is_refused() -> None:
    with pytest.raises(Refusal, match="validation_failed"):
        request_digest(b'{"a":{"b":1,"b":2}}')


@given(JSON)
def test_requests_are_digested_in_their_canonical_form(value: object) -> None:
    plain = json.dumps(value).encode()
    assert request_digest(plain) == request_digest(rfc8785.dumps(value))  # type: ignore[arg-type]
    assert request_digest(plain) == request_digest(json.dumps(value, indent=2, sort_keys=True).encode())


def test_scopes_and_keys_do_not_run_together() -> None:
    assert key_digest("ab", "c") != key_digest("a", "bc")
    assert len({key_digest("s", key) for key in ("a", "A", "a ", "é", "e\u0301", "a\x00")}) == 6
    assert fingerprint_of("1") != request_digest(b'"1"')
