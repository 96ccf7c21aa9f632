"""What is sent: events that the CloudEvents SDK reads, signatures that Standard Webhooks' own library accepts."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_binary, from_structured
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from app.outgoing import headers
from app.outgoing.cloudevents import Event, Mode, encode
from app.outgoing.signatures import new_secret, parse_secret, sign

MODES: list[Mode] = ["binary", "structured"]
MOMENT = 1_770_000_000_123_456

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


def read(fields: dict[str, str], body: bytes) -> Any:
    message = HTTPMessage(fields, body)
    binary = fields["content-type"] == "application/json"
    return (from_binary if binary else from_structured)(message, JSONFormat())


@pytest.mark.parametrize("mode", MODES)
@given(
    attributes=st.tuples(texts, texts, texts),
    subject=texts | st.none(),
    extensions=st.dictionaries(
        st.sampled_from(["correlationid", "orderingkey", "destination", "traceparent", "x1"]), texts
    ),
    version=st.integers(0, 2**31 - 1),
    moment=st.integers(0, 4_102_444_800_000_000),
    value=json_values,
)
def test_the_sdk_reads_every_event_as_it_was_given(
    mode: Mode,
    attributes: tuple[str, str, str],
    subject: str | None,
    extensions: dict[str, str],
    version: int,
    moment: int,
    value: Any,
) -> None:
    given_id, source, kind = attributes
    data = json.dumps(value).encode()
    event = Event(given_id, source, kind, moment, data, subject, {**extensions, "schemaversion": version})
    fields, body = encode(event, mode)
    assert headers.problem_with(fields, ours=True) is None
    seen = read(fields, body)
    assert (seen.get_id(), seen.get_source(), seen.get_type(), seen.get_subject()) == (given_id, source, kind, subject)
    assert seen.get_time() == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)
    assert seen.get_specversion() == "1.0"
    assert {name: seen.get_extension(name) for name in extensions} == extensions
    assert int(seen.get_extension("schemaversion")) == version
    assert seen.get_data() == value


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "data", [b'{"b": 1.0, "a":1e2,"a" : 12345678901234567890}', b"null", '"\u00e9\\u00e9"'.encode(), b"[ ]"]
)
def test_the_data_go_out_byte_for_byte(mode: Mode, data: bytes) -> None:
    fields, body = encode(Event("1", "tenure", "t", MOMENT, data), mode)
    if mode == "binary":
        assert body == data
        assert "ce-datacontenttype" not in fields
    else:
        assert body.endswith(b',"data":' + data + b"}")
        assert json.loads(body)["datacontenttype"] == "application/json"


def test_a_binary_event_looks_as_the_specification_shows() -> None:
    event = Event("1", "/a b", "x.y", MOMENT, b"{}", 'Euro € 😀 "100%"', {"schemaversion": 3, "correlationid": ""})
    fields, body = encode(event, "binary")
    assert fields == {
        "content-type": "application/json",
        "ce-specversion": "1.0",
        "ce-id": "1",
        "ce-source": "/a%20b",
        "ce-type": "x.y",
        "ce-time": "2026-02-02T02:40:00.123456Z",
        "ce-subject": "Euro%20%E2%82%AC%20%F0%9F%98%80%20%22100%25%22",
        "ce-schemaversion": "3",
    }
    assert body == b"{}"


def test_a_number_too_large_for_the_specification_is_written_as_text() -> None:
    body = encode(Event("1", "s", "t", MOMENT, b"0", None, {"small": 2**31 - 1, "large": 2**31}), "structured")[1]
    assert (json.loads(body)["small"], json.loads(body)["large"]) == (2**31 - 1, "2147483648")


def test_no_value_can_add_a_header() -> None:
    event = Event("1\r\nx-evil: 1", "s", "t", MOMENT, b"0", "\r\n\r\n", {"orderingkey": "a\x00\n\x7f\x85"})
    fields, _ = encode(event, "binary")
    assert all(value.isascii() and value.isprintable() for value in fields.values())


@pytest.mark.parametrize(
    "name", ["", "CorrelationId", "a-b", "a_b", "id", "data", "time", "a" * 21, "é", "specversion"]
)
def test_a_name_that_no_extension_may_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name of an extension"):
        Event("1", "s", "t", MOMENT, b"0", None, {name: "x"})


def test_an_event_without_its_identity_is_refused() -> None:
    for parts in (("", "s", "t"), ("1", "", "t"), ("1", "s", "")):
        with pytest.raises(ValueError, match="needs an id"):
            Event(*parts, MOMENT, b"0")


def test_an_event_does_not_show_its_data() -> None:
    assert "canary" not in repr(Event("1", "s", "t", MOMENT, b'"canary"'))


# -- signatures ----------------------------------------------------------------------------------------------------------


@given(key=st.binary(min_size=24, max_size=64), body=texts)
def test_the_library_of_the_standard_verifies_every_signature(key: bytes, body: str) -> None:
    secret = "whsec_" + base64.b64encode(key).decode()
    signed = sign([parse_secret(secret)], "msg_1", int(time.time()), body.encode())
    Webhook(secret).verify(body.encode(), signed, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body.encode() + b" ", signed, json_parse=False)


def test_during_a_rotation_both_secrets_verify_and_a_third_does_not() -> None:
    old, new, other = (new_secret() for _ in range(3))
    signed = sign([parse_secret(new), parse_secret(old)], "0190-abc", int(time.time()), b"{}")
    assert len(signed["webhook-signature"].split(" ")) == 2
    for secret in (old, new):
        Webhook(secret).verify(b"{}", signed)
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(b"{}", signed)
    with pytest.raises(WebhookVerificationError):
        Webhook(new).verify(b"{}", {**signed, "webhook-id": "other"})


def test_a_new_secret_is_new_and_well_formed() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
    assert len(parse_secret(new_secret())) == 32


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "begin with whsec_"),
        ("canary", "begin with whsec_"),
        ("WHSEC_" + "A" * 44, "begin with whsec_"),
        ("whsec_", "24 to 64"),
        ("whsec_" + base64.b64encode(b"x" * 23).decode(), "24 to 64"),
        ("whsec_" + base64.b64encode(b"x" * 65).decode(), "24 to 64"),
        ("whsec_" + "A" * 33, "base64"),
        ("whsec_canary-_" + "A" * 32, "base64"),
        ("whsec_" + "A" * 32 + "\n", "base64"),
        ("whsec_ü" + "A" * 32, "base64"),
    ],
)
def test_a_malformed_secret_is_refused_with_its_reason_and_not_repeated(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        parse_secret(text)
    assert "canary" not in str(refused.value)


def test_what_could_be_read_in_two_ways_is_not_signed() -> None:
    for message_id in ("", "a.b", "a b", "a\r\nb", "é"):
        with pytest.raises(ValueError, match="message id"):
            sign([b"k" * 32], message_id, 1, b"")
    with pytest.raises(ValueError, match="key"):
        sign([], "a", 1, b"")
