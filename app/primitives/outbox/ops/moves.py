"""Moves: where a message goes that was not sent, by settlement, lease loss or verdict. One place decides it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.access import Caller
from app.clock import MICROS, backoff
from app.db.tx import Tx
from app.ids import new_id
from app.primitives.outbox.model.commands import Settlement
from app.primitives.outbox.model.destinations import Destination, OnLeaseLoss
from app.primitives.outbox.model.states import ENDED, Kind, Outcome, State
from app.primitives.outbox.ops import destinations, doubts, flows, lines
from app.primitives.outbox.store import held

ABANDONED = "abandoned"
RELEASED_TOO_OFTEN = "released_too_often"
_KINDS = {
    Outcome.RETRY: Kind.RETRIED,
    Outcome.REJECTED: Kind.REJECTED,
    Outcome.UNKNOWN: Kind.UNKNOWN,
    Outcome.RELEASED: Kind.RELEASED,
}


@dataclass(slots=True)
class Move:
    """A conditional write (`change`, named binds of the store's moves) and the events that tell of it."""

    row: Any
    state: State
    change: dict[str, Any]
    events: list[dict[str, Any]]

    @property
    def available_at(self) -> int | None:
        """When it can be claimed again, if it can."""
        at: int = self.change["b_available_at"]
        return at if self.state in (State.PENDING, State.DELAYED) else None


def purge_at(tx: Tx, destination: Destination | None) -> int:
    """When a message of this destination that ends now may be forgotten."""
    default = tx.host.settings.outbox_retention_seconds
    return tx.now + (destination or Destination("")).retention(default)


def settled(tx: Tx, row: Any, destination: Destination, item: Settlement, caller: Caller) -> Move:
    """Where `retry`, `rejected`, `unknown` or `released` leaves a message that is being sent."""
    category = item.category or (item.reason.value if item.reason else None)
    repeats = item.again_if_idempotent and destination.idempotent
    if item.outcome is Outcome.RETRY or repeats:
        move = _again(tx, row, destination, item.delay, category)
    elif item.outcome is Outcome.RELEASED:
        move = _released(tx, row, destination, item)
    else:
        state = State.UNKNOWN if item.outcome is Outcome.UNKNOWN else State.DEAD
        move = to(tx, row, state, destination, category=category)
    move.change["b_settlement_digest"] = item.digest
    move.change["b_ended_request_id"] = caller.request_id if move.state in ENDED else row.ended_request_id
    move.change["b_reference"] = item.reference or row.reference
    kind = Kind.RETRIED if repeats else _KINDS[item.outcome]
    move.events.insert(
        0,
        event(
            tx, row, kind, category=category, message=item.message, reference=item.reference, request_id=caller.request_id,
            actor=caller.principal.key_id, settlement_digest=item.digest, detail=_detail(move),
        ),
    )  # fmt: skip
    return move


def abandoned(tx: Tx, row: Any, destination: Destination) -> Move:
    """Where a lease that ended leaves its message: unknown, unless the destination is declared to bear a repeat."""
    if destination.on_lease_loss is OnLeaseLoss.RETRY and destination.idempotent:
        move = _again(tx, row, destination, None, ABANDONED)
    else:
        move = to(tx, row, State.UNKNOWN, destination, category=ABANDONED)
    move.change["b_lease_losses"] = row.lease_losses + 1
    move.events.insert(0, event(tx, row, Kind.ABANDONED, category=ABANDONED, detail=_detail(move)))
    return move


def undelivered(tx: Tx, row: Any, destination: Destination) -> Move:
    """Where a grant that reached nobody leaves its message: as if it had not been made, but for the fence."""
    move = to(tx, row, State.PENDING, destination)
    move.change["b_attempt"] = row.attempt - 1
    return move


def _again(tx: Tx, row: Any, destination: Destination, delay: int | None, category: str | None) -> Move:
    if row.attempt >= destinations.max_attempts(tx, row, destination):
        return to(tx, row, State.DEAD, destination, category=category)
    pauses = destination.backoff_seconds or tx.host.settings.jobs_backoff_seconds
    return _later(tx, row, destination, backoff(pauses, row.attempt) if delay is None else delay, category)


def _released(tx: Tx, row: Any, destination: Destination, item: Settlement) -> Move:
    if row.releases + 1 > tx.host.settings.jobs_max_releases:
        move = to(tx, row, State.DEAD, destination, category=RELEASED_TOO_OFTEN)
    else:
        move = _later(tx, row, destination, item.delay or 0, None)
    move.change["b_releases"] = row.releases + 1
    move.change["b_attempt"] = row.attempt - 1  # the claim counted it; unworked, it costs nothing
    return move


def _later(tx: Tx, row: Any, destination: Destination, pause: int, category: str | None) -> Move:
    move = to(tx, row, State.DELAYED if pause > 0 else State.PENDING, destination, category=category)
    if pause > 0:  # what is given back unworked keeps its place among those of its age
        move.change["b_available_at"] = move.change["b_due_at"] = tx.now + pause
    return move


def to(tx: Tx, row: Any, state: State, destination: Destination | None, *, category: str | None = None) -> Move:
    """The plain move to a state."""
    ends = state in ENDED
    change = {
        "b_id": row.id,
        "b_fence": row.fence,
        "b_grant": row.grant_digest,
        "b_state": int(state),
        "b_due_at": purge_at(tx, destination) if ends else None,
        "b_available_at": row.available_at,
        "b_attempt": row.attempt,
        "b_lease_losses": row.lease_losses,
        "b_releases": row.releases,
        "b_ended_at": tx.now if ends else None,
        "b_category": category or row.category,
        "b_reference": row.reference,
        "b_settlement_digest": None,
        "b_ended_request_id": row.ended_request_id,
    }
    events = [event(tx, row, Kind.DEAD, category=change["b_category"])] if state is State.DEAD else []
    return Move(row, state, change, events)


def event(tx: Tx, row: Any, kind: Kind, **told: Any) -> dict[str, Any]:
    """A row for `outbox_events`, with the attempt that the message's row tells of."""
    return {
        "message_id": row.id,
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
    return encode_detail(move.state, move.available_at, move.change["b_attempt"])


def encode_detail(state: State, available_at: int | None, attempt: int) -> bytes:
    """What a repeat of the settlement is answered from."""
    return json.dumps({"state": int(state), "available_at": available_at, "attempt": attempt}).encode()


def read_detail(detail: bytes) -> tuple[State, int | None, int]:
    """(state, available_at, attempt) as an earlier settlement left them."""
    told = json.loads(detail)
    return State(told["state"]), told["available_at"], told["attempt"]


def follow(tx: Tx, moved: Sequence[Move], *, in_line: bool = True) -> None:
    """What follows from moves that are written: events, lines, doubts, and who is woken after the commit. `in_line` False:
    these messages were not the ones under way in their lines.
    """
    if not moved:
        return
    if events := [event for move in moved for event in move.events]:
        held.insert_events(tx, events)
    if in_line:
        lines.leave(tx, sorted(bytes(move.row.id) for move in moved if move.row.ordered and move.state in ENDED))
    doubts.open_(tx, [move.row for move in moved if move.state is State.UNKNOWN])
    memory, names = flows.here(tx), flows.Names(tx)
    ready = Counter(names[move.row.flow_id] for move in moved if move.state is State.PENDING)
    later = [move.change["b_due_at"] for move in moved if move.state is State.DELAYED]
    happened = Counter((names[move.row.flow_id], str(event["kind"])) for move in moved for event in move.events)

    def told() -> None:
        memory.count(happened)
        if ready:
            memory.wake(ready)
        if later:
            memory.promote_in((min(later) - tx.now) / MICROS)

    tx.on_commit(told)
