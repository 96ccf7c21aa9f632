"""Moves: where an attempt that did not succeed leaves its job, by settlement or by lease loss. One place decides both."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.clock import MICROS, micros
from app.db.tx import Tx
from app.primitives.jobs.model import (
    STATE_NAMES,
    Caller,
    Figure,
    Flow,
    Kind,
    Outcome,
    ReleaseReason,
    Settlement,
    State,
    backoff,
    new_id,
)
from app.primitives.jobs.model.terms import Rules
from app.primitives.jobs.ops import flows

ABANDONED = "abandoned"
RELEASED_TOO_OFTEN = "released_too_often"


@dataclass(slots=True)
class Move:
    """A conditional write (`change`, named binds of `store.update_settled`) and the events that tell of it."""

    row: Any
    flow_id: int
    flow: Flow
    priority: int
    state: State
    runs_at: int | None
    change: dict[str, Any]
    events: list[dict[str, Any]]
    figures: tuple[Figure, ...]


def purge_at(tx: Tx, queue: str) -> int:
    """When a job of this queue that ends now may be forgotten."""
    seconds = flows.here(tx).retention_seconds(queue)
    return tx.now + micros(tx.host.settings.jobs_retention_seconds if seconds is None else seconds)


def settled(tx: Tx, row: Any, queue: str, item: Settlement, caller: Caller, rules: Rules) -> Move:
    """Where `failed`, `unknown` or `released` leaves a running job."""
    if item.outcome is Outcome.UNKNOWN:
        move = _move(tx, row, State.UNKNOWN, category=item.category)
        kind = Kind.UNKNOWN
    elif item.outcome is Outcome.RELEASED:
        move, kind = _released(tx, row, item), Kind.RELEASED
    else:
        move, kind = _failed(tx, row, item, rules), Kind.FAILED
    move.change["b_settlement_digest"] = item.digest
    move.change["b_ended_request_id"] = caller.request_id if move.state in _FINAL else row.ended_request_id
    reason = item.reason.value if item.reason else None
    move.events.insert(
        0,
        event(
            tx,
            row,
            kind,
            category=item.category or reason,
            message=item.message,
            reference=item.reference,
            request_id=caller.request_id,
            settlement_digest=item.digest,
            detail=_detail(move),
        ),
    )
    return _closed(tx, row, queue, move, rules, (Figure.FAILED,) if item.outcome is Outcome.FAILED else ())


def abandoned(tx: Tx, row: Any, queue: str, rules: Rules) -> Move:
    """Where a lease that ended leaves its job: cancelled if that was asked for, else by the lease-loss policy."""
    losses = row.lease_losses + 1
    if row.cancel_requested_at is not None:
        move = _move(tx, row, State.CANCELLED)
    elif rules.on_lease_loss == "unknown":
        move = _move(tx, row, State.UNKNOWN)
    elif row.attempt >= row.max_attempts or losses >= rules.max_lease_losses:
        move = _move(tx, row, State.DEAD)
    else:
        move = _later(tx, row, backoff(rules.backoff, losses))
    move.change["b_lease_losses"] = losses
    # what it died of; the last real error stays in its events
    move.change["b_category"] = ABANDONED if move.state is State.DEAD else row.category or ABANDONED
    move.events.insert(0, event(tx, row, Kind.ABANDONED, category=ABANDONED, detail=_detail(move)))
    return _closed(tx, row, queue, move, rules, (Figure.ABANDONED,))


def undelivered(tx: Tx, row: Any, rules: Rules) -> Move:
    """Where a grant that reached nobody leaves its job: as if it had not been made, but for the fence."""
    move = _later(tx, row, 0, limited=False) if row.cancel_requested_at is None else _move(tx, row, State.CANCELLED)
    move.change["b_attempt"] = row.attempt - 1
    return _closed(tx, row, flows.names(tx, [row.flow_id])[row.flow_id][0], move, rules, ())


def _failed(tx: Tx, row: Any, item: Settlement, rules: Rules) -> Move:
    if row.cancel_requested_at is not None:
        return _move(tx, row, State.CANCELLED, category=item.category)
    # every attempt so far ended in a failure or in a lost lease: what was released or asked for anew is not counted
    failures = row.attempt - row.lease_losses
    spent = row.attempt >= row.max_attempts or (rules.max_exceptions is not None and failures >= rules.max_exceptions)
    if not item.retry or spent:
        return _move(tx, row, State.DEAD, category=item.category)
    pause = item.delay if item.delay is not None else backoff(rules.backoff, row.attempt)
    return _later(tx, row, pause, category=item.category)


def _released(tx: Tx, row: Any, item: Settlement) -> Move:
    counter = "throttles" if item.reason is ReleaseReason.THROTTLED else "releases"
    count = getattr(row, counter) + 1
    if row.cancel_requested_at is not None:
        move = _move(tx, row, State.CANCELLED)
    elif count > tx.host.settings.jobs_max_releases:
        move = _move(tx, row, State.DEAD, category=RELEASED_TOO_OFTEN)
    else:
        move = _later(tx, row, item.delay or 0, limited=False)
    move.change[f"b_{counter}"] = count
    move.change["b_attempt"] = row.attempt - 1  # the claim counted it; unworked, it costs nothing
    return move


def _later(tx: Tx, row: Any, pause: int, *, category: str | None = None, limited: bool = True) -> Move:
    """Again after `pause` microseconds, or dead when that lies past the job's own deadline."""
    at = tx.now + pause
    if limited and row.retry_until is not None and at > row.retry_until:
        return _move(tx, row, State.DEAD, category=category)
    state = State.SCHEDULED if pause > 0 else State.AVAILABLE
    move = _move(tx, row, state, category=category)
    move.runs_at = at
    # a released job keeps its place among those of its age
    move.change["b_available_at"] = at if pause > 0 else row.available_at
    move.change["b_due_at"] = at if pause > 0 else None
    return move


_FINAL = (State.DEAD, State.CANCELLED)


def _move(tx: Tx, row: Any, state: State, *, category: str | None = None) -> Move:
    change = {
        "b_id": row.id,
        "b_fence": row.fence,
        "b_grant": row.grant_digest,
        "b_state": int(state),
        "b_due_at": None,
        "b_available_at": row.available_at,
        "b_attempt": row.attempt,
        "b_lease_losses": row.lease_losses,
        "b_releases": row.releases,
        "b_throttles": row.throttles,
        "b_ended_at": tx.now if state in _FINAL else None,
        "b_category": category or row.category,
        "b_settlement_digest": None,
        "b_ended_request_id": row.ended_request_id,
    }
    return Move(row, row.flow_id, ("", "", 0), row.priority, state, None, change, [], ())


def _closed(tx: Tx, row: Any, queue: str, move: Move, rules: Rules, figures: tuple[Figure, ...]) -> Move:
    """What follows from the new state, whatever led there."""
    move.change["b_lease_micros"] = rules.lease
    move.flow = flows.names(tx, [row.flow_id])[row.flow_id]
    if move.state in _FINAL:
        move.change["b_due_at"] = purge_at(tx, queue)
        kind = Kind.DEAD if move.state is State.DEAD else Kind.CANCELLED
        move.events.append(event(tx, row, kind, category=move.change["b_category"]))
    again = (Figure.RETRIED,) if move.state in (State.SCHEDULED, State.AVAILABLE) and figures else ()
    dead = (Figure.DEAD,) if move.state is State.DEAD else ()
    move.figures = (*figures, *again, *dead)
    return move


def event(tx: Tx, row: Any, kind: Kind, **told: Any) -> dict[str, Any]:
    """A row for `job_events`, with the attempt that the job's row tells of."""
    return {
        "job_id": row.id,
        "id": new_id(),
        "at": tx.now,
        "kind": kind.value,
        "attempt": row.attempt,
        "fence": row.fence,
        "claimed_at": row.claimed_at,
        "worker": row.worker,
        "category": None,
        "message": None,
        "reference": None,
        "actor": None,
        "request_id": None,
        "grant_digest": row.grant_digest,
        "settlement_digest": None,
        "detail": None,
        **told,
    }


def _detail(move: Move) -> bytes:
    told = {"state": move.state.text, "available_at": move.runs_at, "attempt": move.change["b_attempt"]}
    return json.dumps(told).encode()


def read_detail(detail: bytes) -> tuple[State, int | None, int]:
    """(state, available_at, attempt) as an earlier settlement left them."""
    told = json.loads(detail)
    return STATE_NAMES[told["state"]], told["available_at"], told["attempt"]


def tell(tx: Tx, moved: Sequence[Move]) -> None:
    """After the commit: wake who waits for what came back, and count."""
    if not moved:
        return
    memory, now = flows.here(tx), tx.now
    figures: dict[tuple[int, Figure], int] = defaultdict(int)
    for move in moved:
        for figure in move.figures:
            figures[move.flow_id, figure] += 1
    ready = Counter(move.flow for move in moved if move.state is State.AVAILABLE)
    later = [move.runs_at for move in moved if move.state is State.SCHEDULED and move.runs_at is not None]

    def told() -> None:
        memory.count(now, figures)
        for move in moved:
            memory.heads.lower(move.flow_id, (move.priority, move.change["b_available_at"]))
        if ready:
            memory.wake(ready)
        if later:
            memory.promote_in((min(later) - now) / MICROS)

    tx.on_commit(told)
