"""The refusals that several verbs of jobs give."""

from __future__ import annotations

from functools import partial

from app import reservations
from app.errors import FORBIDDEN, Refusal
from app.reservations import settled_otherwise

__all__ = ["lost", "out_of_pattern", "settled_otherwise"]

lost = partial(reservations.lost, "job")


def out_of_pattern() -> Refusal:
    return Refusal(FORBIDDEN, "This key's name patterns do not cover the queue.")
