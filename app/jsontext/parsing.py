"""From body bytes to a validated model, with its opaque fields cut out as the exact bytes that were sent.

The opaque fields of a model are found once: a *plan* says under which keys they lie, through nested models and lists. At
run time each envelope is decoded one layer deep (`msgspec.Raw` is a slice of the body), every opaque slice is checked and
replaced by its index, and what is left, a small text, goes through pydantic.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel, ValidationError

from app.errors import PAYLOAD_TOO_LARGE, VALIDATION_FAILED, FieldError, Refusal
from app.jsontext.soundness import check_value, escape, explain
from app.jsontext.types import OWN_FAULT, Opaque

MOST_ERRORS = 50
Model = TypeVar("Model", bound=BaseModel)

_layer = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the opaque values of one model lie: directly under `opaque`, or inside the models under `one` and `many`."""

    opaque: tuple[str, ...]
    one: tuple[tuple[str, Plan], ...]
    many: tuple[tuple[str, Plan], ...]


@dataclass(slots=True)
class _Taken:
    limit: int
    values: list[bytes] = field(default_factory=list)


def parse(model: type[Model], body: bytes, *, max_value_bytes: int) -> Model:
    """Validate `body` as `model`.

    Raises: Refusal `validation_failed` (400 malformed, 422 with pointers), `payload_too_large` for one opaque value above
    `max_value_bytes`. The texts of the refusal never hold what was sent.
    """
    plan = plan_of(model)
    validator = model.__pydantic_validator__
    try:
        if plan is None:
            return validator.validate_json(body)  # type: ignore[no-any-return]  # the validator of `model` gives a `model`
        try:
            envelope = _layer.decode(body)
        except msgspec.ValidationError:  # JSON, but no object: pydantic says so
            return validator.validate_json(body)  # type: ignore[no-any-return]
        taken = _Taken(max_value_bytes)
        _take(plan, envelope, "#", 1, taken)
        return validator.validate_json(_encode(envelope), context=taken.values)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        explain(body)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_input=False)
        if errors[0]["type"] == "json_invalid":
            explain(body)
        raise refusal_of(errors, "#/") from None


def _take(plan: Plan, envelope: dict[str, Any], pointer: str, depth: int, taken: _Taken) -> None:
    """Replace every opaque value below `envelope`, which lies `depth` levels deep, by its index in `taken`."""
    for key in plan.opaque:
        raw = envelope.get(key)
        if raw is not None:
            value = bytes(raw)
            if len(value) > taken.limit:
                raise _too_large(f"{pointer}/{key}", taken.limit)
            check_value(value, f"{pointer}/{key}", depth)
            envelope[key] = len(taken.values)
            taken.values.append(value)
    for key, inner in plan.one:
        raw = envelope.get(key)
        if raw is not None:
            envelope[key] = _take_one(inner, raw, f"{pointer}/{key}", depth + 1, taken)
    for key, inner in plan.many:
        raw = envelope.get(key)
        if raw is not None:
            envelope[key] = _take_many(inner, raw, f"{pointer}/{key}", depth + 1, taken)


def _take_one(plan: Plan, raw: msgspec.Raw, pointer: str, depth: int, taken: _Taken) -> Any:
    try:
        envelope = _layer.decode(raw)
    except msgspec.ValidationError:
        return raw  # another type than an object: pydantic says so, with the same pointer
    _take(plan, envelope, pointer, depth, taken)
    return envelope


def _take_many(plan: Plan, raw: msgspec.Raw, pointer: str, depth: int, taken: _Taken) -> Any:
    try:
        items = _list.decode(raw)
    except msgspec.ValidationError:
        return raw
    return [_take_one(plan, item, f"{pointer}/{index}", depth + 1, taken) for index, item in enumerate(items)]


def _too_large(pointer: str, limit: int) -> Refusal:
    return Refusal(
        PAYLOAD_TOO_LARGE,
        "One value in the body is too large.",
        extra={"max_bytes": limit},
        errors=(FieldError(pointer, f"must have at most {limit} bytes"),),
    )


# -- plans -------------------------------------------------------------------------------------------------------------


@cache
def plan_of(model: type[BaseModel]) -> Plan | None:
    """Where opaque values lie in `model`; None if nowhere. Raises TypeError for a place that this module cannot reach."""
    opaque: list[str] = []
    one: list[tuple[str, Plan]] = []
    many: list[tuple[str, Plan]] = []
    for name, info in model.model_fields.items():
        key = info.alias or name
        kind, inner = _kind(info.annotation, info.metadata, f"{model.__name__}.{name}")
        if kind == "opaque":
            opaque.append(key)
        elif inner is not None and (plan := plan_of(inner)) is not None:
            (one if kind == "one" else many).append((key, plan))
    return Plan(tuple(opaque), tuple(one), tuple(many)) if opaque or one or many else None


def _kind(annotation: Any, metadata: Any, place: str) -> tuple[str, type[BaseModel] | None]:
    """What a field is: ("opaque", None), ("one", model), ("many", model) or ("plain", None)."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0], [*get_args(annotation)[1:], *metadata], place)
    if any(isinstance(mark, Opaque) for mark in metadata):
        return "opaque", None
    if origin in (Union, types.UnionType):
        choices = [choice for choice in get_args(annotation) if choice is not types.NoneType]
        if len(choices) == 1:
            return _kind(choices[0], [], place)
        if any(_kind(choice, [], place)[0] != "plain" for choice in choices):
            raise TypeError(f"{place}: no unions around models or opaque values")
    if origin in (list, tuple):
        kind, inner = _kind(get_args(annotation)[0], [], place)
        if kind == "one":
            return "many", inner
        if kind != "plain":
            raise TypeError(f"{place}: lists of opaque values or of lists are not supported")
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "one", annotation
    return "plain", None


# -- faults ------------------------------------------------------------------------------------------------------------

_DETAILS = {
    "missing": "is required",
    "extra_forbidden": "is not a known field",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing": "must be an integer",
    "int_parsing_size": "must be a smaller integer",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "set_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "finite_number": "must be a finite number",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "enum": "must be one of {expected}",
    "literal_error": "must be one of {expected}",
    OWN_FAULT: "{detail}",
}


def refusal_of(errors: list[Any], prefix: str) -> Refusal:
    """The refusal for what pydantic found. Only texts of our own and limits of the schema get into it."""
    listed = tuple(
        FieldError(_place(prefix, error["loc"]), _detail(error["type"], error.get("ctx", {})))
        for error in errors[:MOST_ERRORS]
    )
    count = len(errors)
    what = "The request is not valid" + (f" in {count} places" if count > 1 else "")
    more = f"; the first {MOST_ERRORS} are listed." if count > MOST_ERRORS else "."
    return Refusal(VALIDATION_FAILED, what + more, errors=listed)


def _place(prefix: str, location: tuple[int | str, ...]) -> str:
    path = "/".join(escape(part) for part in location)
    return prefix + path if path else prefix.rstrip("/")


def _detail(kind: str, context: dict[str, Any]) -> str:
    return _DETAILS.get(kind, "is not valid").format_map(context)
