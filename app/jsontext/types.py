"""The field types of request and response models, with one meaning and one JSON Schema each.

A model may use nothing looser: `Body` refuses unknown fields and takes no value for another type (`"5"` is no number,
`true` is no 1). A fault that a validator of our own finds is raised by `wrong`, whose text is then shown to the caller.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from app.clock import MAX_MOMENT, from_datetime

OWN_FAULT = "tenure_fault"
TEN_YEARS_SECONDS = 315_360_000.0


def wrong(detail: str) -> PydanticCustomError:
    """The error to raise in a validator. `detail` is shown to the caller: it never holds a submitted value."""
    return PydanticCustomError(OWN_FAULT, "{detail}", {"detail": detail})


class Body(BaseModel):
    """Base of every request body: strict types, no unknown fields, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class Params(BaseModel):
    """Base of every set of query parameters: texts become numbers and moments, unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class Read(BaseModel):
    """Base of every answer. Documentation only: answers are encoded from plain values. No field has a default."""

    model_config = ConfigDict(frozen=True)


class Opaque:
    """Marks a field whose JSON value is kept as the exact bytes that were sent. Python value: `bytes`."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(_opaque)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"description": "Any JSON value. It is stored and given back byte for byte."}


def _opaque(value: Any, info: ValidationInfo) -> bytes:
    if isinstance(value, bytes):  # built in Python, by a command or a test
        return value
    taken: Any = info.context  # made by `parse`, which has put an index into it in place of each value
    return bytes(taken[value])


OpaqueJson = Annotated[bytes, Opaque()]

Name = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9._:-]+$", min_length=1, max_length=128),
]


def _bytes_in_range(value: str) -> str:
    if not 1 <= len(value.encode("utf-8")) <= 255:
        raise wrong("must have 1 to 255 bytes of UTF-8")
    return value


Key = Annotated[
    str,
    AfterValidator(_bytes_in_range),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 255, "description": "1 to 255 bytes of UTF-8."}),
]

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def _no_control(value: str) -> str:
    if _CONTROL.search(value):
        raise wrong("must not hold control characters")
    return value


# for people: a worker's or an owner's name; why somebody did something; a message or a description
Label = Annotated[str, StringConstraints(min_length=1, max_length=128), AfterValidator(_no_control)]
Reason = Annotated[str, StringConstraints(min_length=1, max_length=500), AfterValidator(_no_control)]
Note = Annotated[str, StringConstraints(max_length=2000), AfterValidator(_no_control)]

_RFC3339 = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,12}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _moment(value: Any) -> int:
    found = _RFC3339.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise wrong("must be an RFC 3339 time with an offset, like 2026-01-31T08:30:00Z")
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    fraction = int((found[7] or "").ljust(6, "0")[:6])
    try:
        local = datetime(year, month, day, hour, minute, second, fraction, UTC)
        moment = from_datetime(local) - _offset_micros(found[8])
    except ValueError:
        raise wrong("is not a time that exists") from None
    if not 0 <= moment <= MAX_MOMENT:
        raise wrong("must lie in the years 1970 to 9999")
    return moment


def _offset_micros(text: str) -> int:
    if text in "Zz":
        return 0
    hours, minutes = int(text[1:3]), int(text[4:6])
    if hours > 23 or minutes > 59:
        raise ValueError(text)
    return (1 if text[0] == "+" else -1) * (hours * 60 + minutes) * 60_000_000


# Python value: microseconds since the epoch; digits past the sixth are cut off
Moment = Annotated[int, PlainValidator(_moment), WithJsonSchema({"type": "string", "format": "date-time"})]

Seconds = Annotated[float, Field(ge=0, le=TEN_YEARS_SECONDS)]

_UUID = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
IdText = Annotated[str, StringConstraints(pattern=_UUID, to_lower=True)]
Token = Annotated[str, StringConstraints(min_length=1, max_length=256)]
ClaimId = Annotated[str, StringConstraints(pattern=r"^[!-~]+$", min_length=16, max_length=128)]


def _commas(value: Any) -> Any:
    return tuple(value.split(",")) if isinstance(value, str) else value


Commas = BeforeValidator(_commas)  # a query parameter that lists values: `include: Annotated[tuple[X, ...], Commas]`
