"""Contracts for tests: one that keeps every rule, and reasons that are some."""

from __future__ import annotations

from typing import Any

import msgspec

from app.jsontext import parse
from app.primitives.contracts.model.contract import Contract

REASON = "The bank's interface knows no idempotency key; an operator repeats a transfer by hand."

GOOD: dict[str, Any] = {
    "retry": {"max_attempts": 5},
    "backoff_seconds": [10, 60, 300, 900],
    "terminal_handler": {"enqueue": {"queue": "billing", "type": "billing.invoice_failed"}},
    "timeout_seconds": 45,
}


def good(**changes: Any) -> dict[str, Any]:
    """The good contract with other fields; None takes a field out."""
    return {name: value for name, value in {**GOOD, **changes}.items() if value is not None}


def contract(**changes: Any) -> Contract:
    return parse(Contract, msgspec.json.encode(good(**changes)), max_value_bytes=1 << 18)


def exempt(rule: str, reason: str = REASON, expires_on: str | None = None) -> dict[str, Any]:
    return {"rule": rule, "reason": reason, "expires_on": expires_on}
