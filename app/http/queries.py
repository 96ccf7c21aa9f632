"""From a query string to a validated model of parameters."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from app.errors import VALIDATION_FAILED, FieldError, Refusal
from app.jsontext import refusal_of


def parse_query(model: type[BaseModel] | None, query_string: bytes) -> Any:
    """The parameters as `model`, or None if there is no model.

    Raises: Refusal `validation_failed` with pointers like `?limit`: for unknown parameters, for one that is given twice,
    and for values that do not fit.
    """
    if not query_string:
        return None if model is None else _validated(model, {})
    try:
        pairs = parse_qsl(query_string.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        detail = "The query string is not valid: send names and values as UTF-8, percent-encoded."
        raise Refusal(VALIDATION_FAILED, detail, status=400) from None
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            raise _refused(name, "is given twice")
        values[name] = value
    if model is None:
        raise _refused(next(iter(values), ""), "is not a known parameter")
    return _validated(model, values)


def _validated(model: type[BaseModel], values: dict[str, str]) -> BaseModel:
    try:
        return model.model_validate(values)
    except ValidationError as invalid:
        refusal = refusal_of(invalid.errors(include_url=False, include_input=False), "?")
        errors = tuple(
            FieldError(one.pointer, "is not a known parameter" if one.detail == "is not a known field" else one.detail)
            for one in refusal.errors
        )
        raise Refusal(refusal.code, refusal.detail, errors=errors) from None


def _refused(name: str, detail: str) -> Refusal:
    return Refusal(VALIDATION_FAILED, "The request is not valid.", errors=(FieldError(f"?{name[:64]}", detail),))
