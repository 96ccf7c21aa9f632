"""What operators do: a verdict on one message, and actions on many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.access import Caller
from app.clock import micros
from app.db.tx import Tx
from app.errors import VERDICT_CONFLICT, Refusal, not_found
from app.ids import id_text, new_id
from app.primitives.audit.ops import Entry, record
from app.primitives.outbox.model.destinations import Destination
from app.primitives.outbox.model.records import Reconcile, Reconciled
from app.primitives.outbox.model.states import Kind, State, Verdict
from app.primitives.outbox.ops import destinations, doubts, flows, lines, moves, sweep
from app.primitives.outbox.ops.records import message_of
from app.primitives.outbox.ops.refusals import conflict, out_of_pattern
from app.primitives.outbox.store import control as store
from app.primitives.outbox.store import flows as flow_store
from app.primitives.outbox.store import held

LEFT_BY = {Verdict.SENT: State.SENT, Verdict.RETRY: State.PENDING, Verdict.DEAD: State.DEAD}
STALE = "released_stale"


@dataclass(frozen=True, slots=True)
class Requeue:
    """dead -> pending, at most `limit`. None: of every destination, of every type."""

    caller: Caller
    limit: int
    destination: str | None = None
    type: str | None = None
    audit_id: bytes = field(default_factory=new_id)


@dataclass(frozen=True, slots=True)
class ReleaseStale:
    """Take messages back whose claim is older, whatever their leases say."""

    caller: Caller
    claimed_before_seconds: float
    limit: int
    audit_id: bytes = field(default_factory=new_id)


@dataclass(frozen=True, slots=True)
class Purge:
    """Forget messages that ended so long ago in one of the final states."""

    caller: Caller
    state: State
    older_than_seconds: float
    limit: int
    audit_id: bytes = field(default_factory=new_id)


@dataclass(frozen=True, slots=True)
class Changed:
    """How many messages an action changed; `unknown`: how many of them are unknown now."""

    changed: int
    unknown: int = 0


# -- verdicts --------------------------------------------------------------------------------------------------------------


def reconcile(tx: Tx, commands: Sequence[Reconcile]) -> list[Reconciled | Refusal]:
    """unknown -> what the verdict says: `sent`, `pending` with a fresh budget, or `dead`.

    Guarantee: the first verdict stands and is audited with its evidence and actor; the same again is `replayed`, another is
    `verdict_conflict`. Whoever holds the message to find out is fenced. Raises: as values also `not_found`, `forbidden`,
    `state_conflict`.
    """
    ids = sorted({command.id for command in commands})
    rows = {bytes(row.id): row for row in held.lock_messages(tx, ids)}
    given: dict[bytes, Verdict] = {}
    return [_reconcile(tx, command, rows.get(command.id), given) for command in commands]


def _reconcile(tx: Tx, command: Reconcile, row: Any, given: dict[bytes, Verdict]) -> Reconciled | Refusal:
    if row is None:
        return not_found("message")
    names = flows.Names(tx)
    destination, _ = names[row.flow_id]
    if not command.caller.principal.allows(destination):
        return out_of_pattern()
    if row.state == State.UNKNOWN and command.id not in given:
        decide(tx, row, command)
        given[command.id] = command.verdict
        (after,) = held.lock_messages(tx, [command.id])
        return Reconciled(message_of(after, names))
    stands = given.get(command.id) or standing(tx, command.id)
    if stands is None:
        return conflict(State(row.state), "Only an unknown message takes a verdict.")
    if stands is not command.verdict:
        return Refusal(VERDICT_CONFLICT, f"The verdict `{stands}` stands.", extra={"verdict": stands.value})
    (after,) = held.lock_messages(tx, [command.id])
    ours = tx.repeated and tx.memo.get(("verdict", command.id)) is command.verdict
    return Reconciled(message_of(after, names), replayed=not ours)


def standing(tx: Tx, message_id: bytes) -> Verdict | None:
    """The newest verdict on a message, if there is one."""
    row = store.select_newest_verdict(tx, message_id)
    return None if row is None else Verdict(row.category)


def decide(tx: Tx, row: Any, command: Reconcile) -> None:
    """Write the verdict on an unknown message, whose row is locked, with all that follows."""
    name = flows.Names(tx)[row.flow_id][0]
    known = destinations.read(tx, [name]).get(name, Destination(name))
    move = moves.to(tx, row, LEFT_BY[command.verdict], known)
    if command.verdict is Verdict.RETRY:
        move.change |= {"b_attempt": 0, "b_available_at": tx.now}
    move.change["b_reference"] = command.reference or row.reference
    move.change["b_ended_request_id"] = command.caller.request_id
    told = moves.event(
        tx, row, Kind.RECONCILED, category=command.verdict.value, message=command.reason, reference=command.reference,
        actor=command.caller.principal.key_id, request_id=command.caller.request_id, detail=command.evidence,
        grant_digest=command.grant_digest, settlement_digest=command.settlement_digest,
        id=tx.memo.setdefault(("event", row.id), new_id()), worker=None, claimed_at=None,
    )  # fmt: skip
    move.events.insert(0, told)
    held.update_moved(tx, State.UNKNOWN, [move.change])
    doubts.close(tx, [bytes(row.id)])
    moves.follow(tx, [move])
    tx.memo["verdict", bytes(row.id)] = command.verdict
    entry = Entry(
        id=tx.memo.setdefault(("audit", row.id), new_id()), by=command.caller.principal, action="outbox.reconcile_message",
        kind="message", target=id_text(bytes(row.id)), reason=command.reason, request_id=command.caller.request_id,
        details={"verdict": command.verdict.value, "destination": name, "reference": command.reference},
    )  # fmt: skip
    record(tx, [entry])


# -- many ------------------------------------------------------------------------------------------------------------------


def requeue(tx: Tx, commands: Sequence[Requeue]) -> list[Changed]:
    """dead -> pending with a fresh budget; in their lines, to where they stood, behind the message that is under way."""
    return [_requeue(tx, command) for command in commands]


def _requeue(tx: Tx, command: Requeue) -> Changed:
    rows = store.lock_in_flows(
        tx, _flow_ids(tx, command.caller, command.destination, command.type), State.DEAD, command.limit
    )
    states = lines.come_back(tx, {bytes(row.id): State.PENDING for row in rows if row.ordered})
    moved = []
    for row in rows:
        move = moves.to(tx, row, states.get(bytes(row.id), State.PENDING), None)
        move.change |= {"b_attempt": 0, "b_available_at": tx.now}
        move.events = [_event(tx, row, Kind.REQUEUED, command.caller)]
        moved.append(move)
    if moved:
        held.update_moved(tx, State.DEAD, [move.change for move in moved])
        moves.follow(tx, moved)
    told = {"destination": command.destination, "type": command.type, "changed": len(rows)}
    _audit(tx, command, "outbox.requeue_messages", told)
    return Changed(len(rows))


def release_stale(tx: Tx, commands: Sequence[ReleaseStale]) -> list[Changed]:
    """sending -> pending without spending an attempt, only for idempotent destinations; the others become unknown."""
    return [_release_stale(tx, command) for command in commands]


def _release_stale(tx: Tx, command: ReleaseStale) -> Changed:
    before = tx.now - micros(command.claimed_before_seconds)
    rows = store.lock_claimed_before(tx, _flow_ids(tx, command.caller), before, command.limit)
    of, moved = sweep.destinations_of(tx, rows), []
    for row in rows:
        bears = of[row.flow_id].idempotent
        move = moves.to(tx, row, State.PENDING if bears else State.UNKNOWN, of[row.flow_id], category=STALE)
        move.change["b_attempt"] = row.attempt - 1 if bears else row.attempt
        move.events = [_event(tx, row, Kind.ABANDONED, command.caller, category=STALE)]
        moved.append(move)
    if moved:
        held.update_moved(tx, State.SENDING, [move.change for move in moved])
        moves.follow(tx, moved)
    unknown = sum(move.state is State.UNKNOWN for move in moved)
    _audit(tx, command, "outbox.release_stale_messages", {"changed": len(rows), "unknown": unknown})
    return Changed(len(rows), unknown)


def purge(tx: Tx, commands: Sequence[Purge]) -> list[Changed]:
    """Forget ended messages before their retention is over, with their keys."""
    return [_purge(tx, command) for command in commands]


def _purge(tx: Tx, command: Purge) -> Changed:
    before = tx.now - micros(command.older_than_seconds)
    rows = store.lock_ended_before(tx, _flow_ids(tx, command.caller), command.state, before, command.limit)
    sweep.forget(tx, rows)
    _audit(tx, command, "outbox.purge_messages", {"state": command.state.text, "changed": len(rows)})
    return Changed(len(rows))


def _flow_ids(tx: Tx, caller: Caller, destination: str | None = None, type_: str | None = None) -> list[int]:
    return [
        row.id
        for row in flow_store.select_flows(tx)
        if destination in (None, row.destination)
        and type_ in (None, row.type)
        and caller.principal.allows(row.destination)
    ]


def _event(tx: Tx, row: Any, kind: Kind, caller: Caller, **told: Any) -> dict[str, Any]:
    actor, request_id = caller.principal.key_id, caller.request_id
    return moves.event(tx, row, kind, actor=actor, request_id=request_id, **told)


def _audit(tx: Tx, command: Requeue | ReleaseStale | Purge, action: str, details: dict[str, Any]) -> None:
    entry = Entry(
        id=command.audit_id, by=command.caller.principal, action=action, kind="messages", target="outbox",
        request_id=command.caller.request_id, details=details,
    )  # fmt: skip
    record(tx, [entry])
