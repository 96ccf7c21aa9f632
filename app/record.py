"""`@record`: a small immutable value that is made for every job, and so must cost little to make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A dataclass with slots that the type checker holds to be frozen.

    `frozen=True` itself sets every field through `object.__setattr__`, four times the cost of making one; for commands and
    outcomes that was five percent of the service's time under load.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
