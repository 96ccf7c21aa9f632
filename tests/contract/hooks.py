"""What Schemathesis is told beside its options (SCHEMATHESIS_HOOKS): a wait that is right is not waited for."""

from __future__ import annotations

from typing import Any

import schemathesis

LONGEST_WAIT = 30


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """A wait within its bounds is made 0, which is as right; every other value goes out as it was made."""
    body = case.body
    if isinstance(body, dict) and isinstance(body.get("wait_seconds"), int | float):
        wait = body["wait_seconds"]
        if not isinstance(wait, bool) and 0 < wait <= LONGEST_WAIT:
            body["wait_seconds"] = 0
