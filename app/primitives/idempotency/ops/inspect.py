"""Reading for people: lists and figures."""

from __future__ import annotations

from typing import Any

from app.db.tx import Tx
from app.primitives.idempotency import store
from app.primitives.idempotency.model import Filter, KeyRead, OnOwnerLost, State
from app.primitives.idempotency.ops.told import here
from app.record import record


@record
class Page:
    """`after`: the (due_at, digest) to go on from; None on the last page."""

    keys: tuple[KeyRead, ...]
    after: tuple[int, bytes] | None


def list_keys(tx: Tx, wanted: Filter) -> Page:
    """Those that are due last first. What the caller's key does not cover is left out, so a page may be short."""
    scope = None if wanted.scope is None else wanted.scope.encode()
    rows = store.select_page(tx, wanted.state, scope, wanted.after, wanted.limit + 1)
    after = None
    if len(rows) > wanted.limit:
        last = rows[wanted.limit - 1]
        after = (last.due_at or 0, bytes(last.digest))
    read = [_read(row) for row in rows[: wanted.limit]]
    return Page(tuple(one for one in read if wanted.principal.allows(one.scope)), after)


def _read(row: Any) -> KeyRead:
    return KeyRead(
        bytes(row.digest), bytes(row.scope).decode(), State(row.state), row.attempt, row.fence,
        OnOwnerLost.of(row.on_owner_lost), row.created_at, row.ended_at, row.due_at, row.category,
    )  # fmt: skip


def count_states(tx: Tx, _: None) -> dict[str, int]:
    """How many keys are in each state; kept for the metrics."""
    found = store.count_states(tx)
    states = {state.text: found.get(state, 0) for state in State}
    here(tx).states = states
    return states
