"""Settlements as they are answered, one or many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.clock import to_text
from app.errors import Refusal
from app.http.problem import problem_of
from app.ids import id_text
from app.primitives.outbox.model.commands import Settled, Settlement


def settled_view(settled: Settled) -> dict[str, Any]:
    return {
        "id": id_text(settled.id),
        "state": settled.state.text,
        "attempt": settled.attempt,
        "available_at": None if settled.available_at is None else to_text(settled.available_at),
        "replayed": settled.replayed,
    }


def settled_results(
    items: Sequence[Settlement], outcomes: Sequence[Settled | Refusal], request_id: str
) -> list[dict[str, Any]]:
    nothing = {"state": None, "attempt": None, "available_at": None, "replayed": False}
    return [
        {"status": outcome.http_status, "id": id_text(item.id), **nothing, "problem": problem_of(outcome, request_id)}
        if isinstance(outcome, Refusal)
        else {"status": 200, **settled_view(outcome), "problem": None}
        for item, outcome in zip(items, outcomes, strict=True)
    ]
