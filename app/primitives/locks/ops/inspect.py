"""Reading for people: lists and figures."""

from __future__ import annotations

from typing import Any

from app.db.tx import Tx
from app.primitives.locks import store
from app.primitives.locks.model import Filter, Lock, State, digest_of
from app.primitives.locks.ops.told import here
from app.record import record


@record
class Page:
    """`after`: the (due_at, digest) to go on from; None on the last page."""

    locks: tuple[Lock, ...]
    after: tuple[int, bytes] | None


def list_locks(tx: Tx, wanted: Filter) -> Page:
    """Those that end last first. What the caller's key does not cover is left out, so a page may be short."""
    rows = _rows(tx, wanted)
    following = (
        (rows[wanted.limit - 1].due_at, bytes(rows[wanted.limit - 1].digest)) if len(rows) > wanted.limit else None
    )
    shown = [row for row in rows[: wanted.limit] if wanted.principal.allows(_name(row))]
    waiters = store.count_waiters(tx, [bytes(row.digest) for row in shown]) if shown else {}
    return Page(tuple(_lock(tx, row, waiters.get(bytes(row.digest), 0)) for row in shown), following)


def _rows(tx: Tx, wanted: Filter) -> list[Any]:
    if wanted.name is None:
        return list(store.select_page(tx, wanted.state, wanted.after, wanted.limit + 1))
    rows = store.select_locks(tx, [digest_of(wanted.name)])
    return [row for row in rows if _state(tx, row) is wanted.state and wanted.after is None]


def _state(tx: Tx, row: Any) -> State:
    return State.HELD if row.state == State.HELD and row.due_at > tx.now else State.FREE


def _name(row: Any) -> str:
    return bytes(row.name).decode()


def _lock(tx: Tx, row: Any, waiters: int) -> Lock:
    return Lock(
        _name(row), _state(tx, row), row.owner, row.fence, row.lease_micros, row.acquired_at, row.due_at,
        bytes(row.digest), waiters,
    )  # fmt: skip


def count_held(tx: Tx, _: None) -> int:
    """How many locks are held; kept for the metrics."""
    held = store.count_held(tx)
    here(tx).held = held
    return held
