"""Bodies: opaque values come through byte for byte, and everything that is not sound JSON is refused with its place."""

from __future__ import annotations

import json
import math
import sys
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from app.errors import Refusal
from app.jsontext import Body, Key, Moment, Name, OpaqueJson, Seconds, parse, plan_of, wrong
from app.jsontext.types import Note

LIMIT = 256 * 1024


class Inner(Body):
    key: Key
    evidence: OpaqueJson | None = None


class Job(Body):
    queue: Name
    payload: OpaqueJson
    priority: int = 0
    urgent: bool = False
    delay_seconds: Seconds | None = None
    at: Moment | None = None
    inner: Inner | None = None
    note: Note | None = None


class Batch(Body):
    jobs: Annotated[list[Job], Field(max_length=1000)]
    settlements: list[Inner] | None = None


def job(payload: bytes, more: bytes = b"") -> bytes:
    return b'{"queue":"q","payload":' + payload + more + b"}"


def refused(body: bytes, model: type[Body] = Job) -> Refusal:
    with pytest.raises(Refusal) as caught:
        parse(model, body, max_value_bytes=LIMIT)
    return caught.value


EXACT = [
    b"null",
    b"true",
    b"0",
    b"-0.0",
    b'""',
    b"{}",
    b"[]",
    b'{"b":1,"a":2}',
    b'{"a":1,"a":2}',
    b"1.10",
    b"1e5",
    b"1E+308",
    b"12345678901234567890123456789",
    b"0.1000000000000000055511151231257827",
    b'"\\u0000"',
    b'"\\ud83d\\ude00"',
    '"😀"'.encode(),
    b'"\\\\ud800"',
    b'"a\\/b"',
    b"[1 , 2]",
    b'{"a" : [ ] }',
    b"[" * 255 + b"]" * 255,
    b'"[[[{{{"',
    b"1" * 6000,
]


@pytest.mark.parametrize("payload", EXACT)
def test_an_opaque_value_is_kept_byte_for_byte(payload: bytes) -> None:
    assert parse(Job, job(b" \t\n" + payload + b"\r "), max_value_bytes=LIMIT).payload == payload


def test_opaque_values_are_kept_in_nested_models_and_lists() -> None:
    body = (
        b'{"jobs":[{"payload":{"z":1,"a":1.0},"queue":"q","inner":{"evidence":null,"key":"k"}},'
        + job(b"2")
        + (b'],"settlements":[{"key":"k","evidence":[1.50]},{"key":"k"}]}')
    )
    batch = parse(Batch, body, max_value_bytes=LIMIT)
    assert [one.payload for one in batch.jobs] == [b'{"z":1,"a":1.0}', b"2"]
    assert batch.jobs[0].inner is not None
    assert batch.jobs[0].inner.evidence == b"null"
    assert batch.settlements is not None
    assert [one.evidence for one in batch.settlements] == [b"[1.50]", None]


UNSOUND = [
    (b"NaN", "#/payload"),
    (b"-Infinity", "#/payload"),
    (b"[1,Infinity]", "#/payload/1"),
    (b"1e400", "#/payload"),
    (b'{"a":[{"b/c":-1e999}]}', "#/payload/a/0/b~1c"),
    (b"9" * 400 + b".0", "#/payload"),
    (b'"\\ud800"', "#/payload"),
    (b'"\\udc00\\ud800"', "#/payload"),
    (b'{"k":"x\\uDBFFy"}', "#/payload/k"),
    (b'{"\\ud800":1}', "#/payload"),
    (b'["\\\\\\ud800"]', "#/payload/0"),
    (b"[" * 256 + b"]" * 256, "#/payload" + "/0" * 255),
    (b"[" * 100_000 + b"]" * 100_000, "#/payload" + "/0" * 255),
    (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "#/payload" + "/a" * 255),
]


@pytest.mark.parametrize(("payload", "pointer"), UNSOUND)
def test_an_unsound_value_is_422_with_its_place(payload: bytes, pointer: str) -> None:
    refusal = refused(job(payload))
    assert (refusal.code.name, refusal.http_status) == ("validation_failed", 422)
    assert [one.pointer for one in refusal.errors] == [pointer]


def test_an_unsound_value_in_a_batch_is_named_by_its_index() -> None:
    refusal = refused(b'{"jobs":[' + job(b"1") + b"," + job(b"[1,1e999]") + b"]}", Batch)
    assert [one.pointer for one in refusal.errors] == ["#/jobs/1/payload/1"]


MALFORMED = [
    b"",
    b" ",
    b"{",
    job(b""),
    job(b"01"),
    job(b"1."),
    job(b"[1,]"),
    job(b'{"a":1,}'),
    job(b"'a'"),
    job(b"nul"),
    job(b'"\\x"'),
    job(b'"\\u12"'),
    job(b'"a\nb"'),
    job(b'"\xff"'),
    job(b'"\xed\xa0\x80"'),
    b"\xef\xbb\xbf" + job(b"1"),
    job(b"1") + b"x",
    b'{"queue":"q\xff","payload":1}',
    b"\xff",
    job(b"\x0b1"),
    "\ufeff".encode("utf-16") + b"{}",
]


@pytest.mark.parametrize("body", MALFORMED)
def test_what_is_not_json_is_400(body: bytes) -> None:
    assert (refused(body).code.name, refused(body).http_status) == ("validation_failed", 400)


TYPES = [
    (b',"priority":"5"', "#/priority"),
    (b',"priority":true', "#/priority"),
    (b',"priority":1.0', "#/priority"),
    (b',"urgent":1', "#/urgent"),
    (b',"urgent":"true"', "#/urgent"),
    (b',"delay_seconds":"1"', "#/delay_seconds"),
    (b',"delay_seconds":NaN', "#/delay_seconds"),
    (b',"delay_seconds":1e400', "#/delay_seconds"),
    (b',"delay_seconds":-1', "#/delay_seconds"),
    (b',"delay_seconds":true', "#/delay_seconds"),
    (b',"prio":1', "#/prio"),
    (b',"inner":{"key":""}', "#/inner/key"),
    (b',"inner":{"key":"k","x":1}', "#/inner/x"),
    (b',"inner":[]', "#/inner"),
    (b',"inner":{"key":"\\udc00"}', "#/inner/key"),
    (b',"note":"\\u0000"', "#/note"),
    (b',"at":1700000000', "#/at"),
]


@pytest.mark.parametrize(("more", "pointer"), TYPES)
def test_no_value_is_taken_for_another_type(more: bytes, pointer: str) -> None:
    refusal = refused(job(b"1", more))
    assert refusal.http_status == 422
    assert [one.pointer for one in refusal.errors] == [pointer]


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null", b'[{"queue":"q"}]'])
def test_a_body_that_is_no_object_is_422(body: bytes) -> None:
    assert [(one.pointer, one.detail) for one in refused(body).errors] == [("#", "must be an object")]


def test_no_refusal_holds_what_was_sent() -> None:
    refusal = refused(b'{"queue":"hunter2 hunter2","payload":1,"priority":"hunter2","at":"hunter2","inner":{"key":5}}')
    assert len(refusal.errors) == 4
    assert "hunter2" not in str(refusal) + str(refusal.errors)


def test_one_value_too_large_is_413_and_named() -> None:
    refusal = refused(b'{"jobs":[' + job(b"1") + b"," + job(b'"' + b"x" * LIMIT + b'"') + b"]}", Batch)
    assert (refusal.code.name, refusal.http_status) == ("payload_too_large", 413)
    assert [one.pointer for one in refusal.errors] == ["#/jobs/1/payload"]


@pytest.mark.parametrize(("text", "micros"), [
    ("1970-01-01T00:00:00Z", 0), ("2026-01-31T08:30:00.123456Z", 1769848200123456),
    ("2026-01-31t09:30:00.123456789+01:00", 1769848200123456),
    ("9999-12-31T23:59:59.999999Z", 253402300799999999), ("1969-12-31T23:59:59Z", None), ("1970-01-01T00:00:00+00:01", None),
    ("2026-02-29T00:00:00Z", None), ("2026-01-01T24:00:00Z", None), ("2026-01-01T00:00:60Z", None),
    ("2026-01-01T00:00:00", None),
    ("2026-01-01", None), ("0000-01-01T00:00:00Z", None), ("2026-01-01T00:00:00+24:00", None), ("٢٠٢٦-01-01T00:00:00Z", None),
])  # fmt: skip
def test_a_moment_is_exact_or_refused(text: str, micros: int | None) -> None:
    body = job(b"1", b',"at":' + json.dumps(text).encode())
    if micros is None:
        assert [one.pointer for one in refused(body).errors] == ["#/at"]
    else:
        assert parse(Job, body, max_value_bytes=LIMIT).at == micros


@pytest.mark.parametrize(("key", "good"), [
    ("a", True), ("a ", True), ("é" * 127, True), ("é" * 128, False), ("x" * 255, True), ("x" * 256, False), ("", False),
    ("\0", True),
])  # fmt: skip
def test_a_key_is_counted_in_bytes(key: str, good: bool) -> None:
    body = job(b"1", b',"inner":{"key":' + json.dumps(key).encode() + b"}")
    if good:
        parsed = parse(Job, body, max_value_bytes=LIMIT).inner
        assert parsed is not None
        assert parsed.key == key
    else:
        assert [one.pointer for one in refused(body).errors] == ["#/inner/key"]


def test_a_place_that_cannot_be_reached_is_refused_when_the_model_is_read() -> None:
    class Wrong(Body):
        values: list[OpaqueJson]

    with pytest.raises(TypeError, match="not supported"):
        plan_of(Wrong)


def test_a_text_of_our_own_is_shown() -> None:
    from pydantic import model_validator

    class Pair(Body):
        a: int

        @model_validator(mode="after")
        def _never(self) -> Pair:
            raise wrong("`a` and `b` exclude each other")

    assert [one.detail for one in refused(b'{"a":1}', Pair).errors] == ["`a` and `b` exclude each other"]


# -- against json.loads ------------------------------------------------------------------------------------------------


def reference(payload: bytes) -> str:
    """What must become of a payload: `good`, `unsound` (422) or `malformed` (400). Slow, and independent."""
    try:
        text = payload.decode("utf-8")
        value = json.loads(text, parse_float=float, parse_int=lambda _digits: 1)
    except (UnicodeDecodeError, json.JSONDecodeError):
        return "malformed"
    except RecursionError:
        return "unsound"
    return "good" if _sound(value, 2) else "unsound"


def _sound(value: Any, depth: int) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return not any(0xD800 <= ord(char) <= 0xDFFF for char in value)
    if isinstance(value, list):
        return depth <= 256 and all(_sound(one, depth + 1) for one in value)
    if isinstance(value, dict):
        return depth <= 256 and all(_sound(key, depth) and _sound(one, depth + 1) for key, one in value.items())
    return True


PIECES = st.sampled_from([
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u", b"d800", b"dc00", b"0", b"1", b"-", b".", b"e", b"E+", b"400",
    b"NaN", b"Infinity", b"true", b"null", b" ", b"\n", b'"a"', b'"\\ud83d\\ude00"', b'"\\ud800"', b"\xc3\xa9", b"\xff", b"1e400",
    b'"k":',
])  # fmt: skip
TEXT = st.text(st.characters(codec=None))
SHORT = st.text(st.characters(codec=None), max_size=5)
TEXTS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(10**300, 10**400),
        st.floats(),
        TEXT,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(SHORT, inner, max_size=4)),
    max_leaves=15,
)


def verdict(payload: bytes) -> str:
    try:
        parsed = parse(Job, job(payload), max_value_bytes=LIMIT)
    except Refusal as refusal:
        return {400: "malformed", 422: "unsound"}[refusal.http_status]
    assert parsed.payload == payload.strip(b" \t\n\r")
    return "good"


@settings(max_examples=400)
@given(st.lists(PIECES, min_size=1, max_size=12).map(b"".join))
def test_broken_texts_are_judged_as_json_loads_judges_them(payload: bytes) -> None:
    expected = reference(payload)
    if payload.count(b'"') % 2 or expected == "malformed":
        # the text may close our envelope and go on; whatever it is, it must not be taken for this payload
        try:
            parse(Job, job(payload), max_value_bytes=LIMIT)
        except Refusal:
            return
        json.loads(job(payload))
    else:
        assert verdict(payload) == expected


@settings(max_examples=300)
@given(TEXTS, st.booleans(), st.sampled_from([None, 1]))
def test_values_are_judged_as_json_loads_judges_them(value: Any, ascii_only: bool, indent: int | None) -> None:
    sys.set_int_max_str_digits(0)
    try:
        text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    finally:
        sys.set_int_max_str_digits(4300)
    payload = text.encode("utf-8", "surrogatepass")
    assert verdict(payload) == reference(payload)


@given(st.integers(0, 600), st.sampled_from([(b"[", b"]", b""), (b'{"a":', b"}", b"1")]))
def test_nesting_is_allowed_to_256_levels_of_the_whole_body(levels: int, kind: tuple[bytes, bytes, bytes]) -> None:
    opening, closing, core = kind
    payload = opening * levels + (core or (b"1" if not levels else b"")) + closing * levels
    assert verdict(payload) == ("good" if levels <= 255 else "unsound")
