"""The refusals that several verbs of the outbox give."""

from __future__ import annotations

from functools import partial

from app import reservations
from app.errors import FORBIDDEN, STATE_CONFLICT, VALIDATION_FAILED, FieldError, Refusal
from app.primitives.outbox.model.states import State

lost = partial(reservations.lost, "message")


def out_of_pattern() -> Refusal:
    return Refusal(FORBIDDEN, "This key's name patterns do not cover the destination.")


def unknown_destination() -> Refusal:
    return Refusal(
        VALIDATION_FAILED,
        "There is no such destination: set it first, with PUT /v1/outbox/destinations/{name}.",
        errors=(FieldError("#/destination", "must be a destination that was set"),),
    )


def conflict(state: State, why: str) -> Refusal:
    return Refusal(STATE_CONFLICT, f"The message is {state.text}. {why}", extra={"state": state.text})
