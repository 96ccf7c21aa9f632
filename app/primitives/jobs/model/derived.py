"""Keys that a job gets from its payload, where the contract of its type says by what. Pure.

What an enqueue names itself stands. A string and an integer that are written alike are one key: producers in several languages
mean the same thing by them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jsonpointer import resolve_pointer

from app.errors import FieldError
from app.primitives.jobs.model.commands import NewJob
from app.primitives.jobs.model.keys import Concurrency, Unique, Until, concurrency_digest, unique_digest
from app.primitives.jobs.model.payloads import ROOT, decode
from app.primitives.jobs.model.terms import Terms

LONGEST_KEY = 255  # bytes

_WANTED = "must be a string of 1 to 255 bytes or an integer: a key is taken from here"


class NoKey(ValueError):
    """The payload has no usable key at the place that the contract names."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(detail)
        self.error = FieldError(ROOT + pointer, detail)


def wanted(terms: Terms, new: NewJob) -> bool:
    """Whether this job is to have a key that it does not name itself."""
    return _unique_by(terms, new) is not None or _no_overlap_by(terms, new) is not None


def keyed(terms: Terms, new: NewJob) -> NewJob:
    """The job with its keys: unique until it starts, or one run at a time among those of its type. Raises: NoKey."""
    try:
        payload = decode(new.payload)
    except (ValueError, RecursionError):
        raise NoKey("", "is nested too deep, or names a member twice: no key can be taken from it") from None
    if (pointer := _unique_by(terms, new)) is not None:
        name = _key(payload, pointer)
        new = replace(new, unique=Unique(name, unique_digest(new.flow[1], name), Until.STARTED))
    if (pointer := _no_overlap_by(terms, new)) is not None:
        # concurrency keys are one namespace for all types
        name = _short(f"{new.flow[1]}:".encode() + _key(payload, pointer), pointer)
        new = replace(new, concurrency=Concurrency(name, concurrency_digest(name), 1))
    return new


def _unique_by(terms: Terms, new: NewJob) -> str | None:
    return terms.unique_by if new.sole is None else None


def _no_overlap_by(terms: Terms, new: NewJob) -> str | None:
    return terms.no_overlap_by if new.concurrency is None else None


def _key(payload: Any, pointer: str) -> bytes:
    value = resolve_pointer(payload, pointer, None)  # None is no key either
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise NoKey(pointer, _WANTED)
    return _short(str(value).encode(), pointer)


def _short(key: bytes, pointer: str) -> bytes:
    if len(key) > LONGEST_KEY:
        raise NoKey(pointer, f"is too long: the key that is taken from it would have more than {LONGEST_KEY} bytes")
    return key
