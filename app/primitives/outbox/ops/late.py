"""Late: what is answered to a token whose reservation has ended, and what becomes of what its holder says.

A holder whose lease was lost may know what the service does not: that the message was sent. What it says is kept as evidence
for the verdict. Where the destination is declared idempotent and takes late acknowledgements, a late `sent` counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app import reservations
from app.access import Caller
from app.db.tx import Tx
from app.errors import Refusal, not_found
from app.primitives.outbox.model.commands import Settled, Settlement
from app.primitives.outbox.model.destinations import Destination, LateAck
from app.primitives.outbox.model.states import Kind, Outcome, State
from app.primitives.outbox.ops import doubts, flows, lines, moves
from app.primitives.outbox.ops.refusals import lost, out_of_pattern
from app.primitives.outbox.store import held as store
from app.reservations import Presented, settled_otherwise

MOST_KEPT = 5  # late answers of one reservation
Place = tuple[int, int]
Answers = dict[Place, Settled | Refusal]
_FINAL = (State.SENT, State.ABORTED)


@dataclass(slots=True)
class Late:
    """One settlement whose token is not that of a reservation in force."""

    place: Place
    item: Settlement
    caller: Caller
    row: Any
    token: Presented


def answer(tx: Tx, lates: Sequence[Late], answers: Answers, destination: Callable[[Any], Destination]) -> None:
    """Answer them; `destination` gives that of a row."""
    if not lates:
        return
    grants = sorted({one.token.digest for one in lates})
    events = store.select_events_of_grants(tx, sorted({bytes(one.row.id) for one in lates}), grants)
    settled: dict[bytes, Settled] = {}
    for one in lates:
        mine = [event for event in events if _is_of(tx, event, one)]
        newest = reservations.matches(
            tx.host.token_key, one.token, one.row.grant_digest, bytes(one.row.id), one.row.fence
        )
        known = _known(one, mine, newest=newest)
        if known is not None:
            answers[one.place] = known
        elif one.item.id in settled:
            answers[one.place] = lost("settled", one.row.fence)
        elif _bears(one, destination(one.row)):
            answers[one.place] = settled[one.item.id] = _acknowledge(tx, one, mine, destination(one.row))
        else:
            _keep(tx, one, mine)
            answers[one.place] = _refusal(tx, one, newest=newest)


def _is_of(tx: Tx, event: Any, one: Late) -> bool:
    return (
        event.message_id == one.row.id
        and event.grant_digest == one.token.digest
        and reservations.matches(tx.host.token_key, one.token, event.grant_digest, bytes(one.row.id), event.fence)
    )


def _known(one: Late, events: list[Any], *, newest: bool) -> Settled | Refusal | None:
    """The answer where the reservation was settled before, or is none of ours; None for one that was lost."""
    ended = next((event for event in reversed(events) if event.settlement_digest is not None), None)
    if ended is not None:
        if ended.settlement_digest != one.item.digest:
            return settled_otherwise()
        state, available_at, attempt = moves.read_detail(ended.detail)
        return Settled(one.item.id, state, attempt, available_at, replayed=True)
    if newest and one.row.settlement_digest is not None:
        if one.row.settlement_digest != one.item.digest:
            return settled_otherwise()
        return Settled(one.item.id, State(one.row.state), one.row.attempt, replayed=True)
    if not newest and not events:
        return lost("unknown_token", one.row.fence)
    return None


def _bears(one: Late, destination: Destination) -> bool:
    accepts = destination.late_ack is LateAck.ACCEPT and destination.idempotent
    return accepts and one.item.outcome is Outcome.SENT and one.row.state != State.ABORTED


def _acknowledge(tx: Tx, one: Late, events: list[Any], destination: Destination) -> Settled:
    """Whatever state the message is in: it was sent, and who may be sending it again finds that it is done."""
    before = State(one.row.state)
    if before is State.SENT:
        return Settled(one.item.id, before, one.row.attempt, replayed=True)
    move = moves.to(tx, one.row, State.SENT, destination)
    move.change["b_reference"] = one.item.reference or one.row.reference
    move.change["b_ended_request_id"] = one.caller.request_id
    detail = moves.encode_detail(State.SENT, None, one.row.attempt)
    move.events = [_event(tx, one, events, settlement_digest=one.item.digest, detail=detail)]
    if before is State.BLOCKED:  # it was lost, and requeued behind another of its line
        lines.step_out(tx, [bytes(one.row.id)])
    store.update_moved(tx, before, [move.change])
    if before is State.UNKNOWN:
        doubts.close(tx, [bytes(one.row.id)])
    moves.follow(tx, [move], in_line=before not in (State.BLOCKED, State.DEAD))
    return Settled(one.item.id, State.SENT, one.row.attempt)


def _keep(tx: Tx, one: Late, events: list[Any]) -> None:
    """Once for each thing that is said, so that a holder that repeats itself fills nothing."""
    kept = [event for event in events if event.kind == Kind.LATE_ANSWER]
    if len(kept) < MOST_KEPT and not any(event.detail == one.item.digest for event in kept):
        store.insert_events(tx, [_event(tx, one, events, detail=one.item.digest)])


def _event(tx: Tx, one: Late, events: list[Any], **told: Any) -> dict[str, Any]:
    """Told of the attempt whose reservation it was; an older one than the row's has left an event."""
    own = events[0] if events else one.row
    return moves.event(
        tx, one.row, Kind.LATE_ANSWER, category=one.item.outcome.value, message=one.item.message,
        reference=one.item.reference, actor=one.caller.principal.key_id, request_id=one.caller.request_id,
        grant_digest=one.token.digest, fence=own.fence, attempt=own.attempt, claimed_at=own.claimed_at, worker=own.worker,
        **told,
    )  # fmt: skip


def _refusal(tx: Tx, one: Late, *, newest: bool) -> Refusal:
    if not newest:
        return lost("superseded", one.row.fence)
    if one.row.state == State.SENDING:
        memory = flows.here(tx)
        tx.on_commit(lambda: memory.abandon_in(0))
    return lost("settled" if one.row.state in _FINAL else "expired", one.row.fence)


def answer_gone(tx: Tx, items: Sequence[tuple[Place, Settlement, Caller]], answers: Answers) -> None:
    """Settlements of messages that are gone: of one that was deleted as it was sent, its key still tells."""
    rows = store.select_keys_of(tx, sorted({item.id for _, item, _ in items})) if items else ()
    left, names = {bytes(row.message_id): row for row in rows}, flows.Names(tx)
    for place, item, caller in items:
        row, token = left.get(item.id), reservations.present(item.token)
        if row is None:
            answers[place] = not_found("message")
        elif not caller.principal.allows(names[row.flow_id][0]):
            answers[place] = out_of_pattern()
        elif token is None or not reservations.matches(
            tx.host.token_key, token, row.grant_digest, item.id, row.fence or 0
        ):
            answers[place] = lost("unknown_token", row.fence)
        elif row.settlement_digest != item.digest:
            answers[place] = settled_otherwise()
        else:
            answers[place] = Settled(item.id, State.SENT, row.attempt, replayed=True)
