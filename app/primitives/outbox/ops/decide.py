"""Decide: a prepared message is to be sent, or never. Its producer says so, by itself or when it is asked, or an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.db.tx import Tx
from app.errors import STATE_CONFLICT, Refusal, not_found
from app.ids import id_text, new_id
from app.primitives.audit.ops import Entry
from app.primitives.audit.ops import record as audit
from app.primitives.outbox.model.commands import Decide, Decided
from app.primitives.outbox.model.destinations import Destination
from app.primitives.outbox.model.keys import line_digest
from app.primitives.outbox.model.records import Message
from app.primitives.outbox.model.states import Check, Decision, Kind, State
from app.primitives.outbox.ops import destinations, flows, moves
from app.primitives.outbox.ops.lines import Entering
from app.primitives.outbox.ops.record import gone
from app.primitives.outbox.ops.records import message_of, told
from app.primitives.outbox.ops.refusals import conflict, out_of_pattern
from app.primitives.outbox.store import checks as store
from app.primitives.outbox.store import held, work

_KINDS = {Decision.CONFIRMED: Kind.CONFIRMED, Decision.ABORTED: Kind.ABORTED}


def decide(tx: Tx, commands: Sequence[Decide]) -> list[Decided | Refusal]:
    """prepared -> pending, delayed or blocked (confirmed), or aborted.

    Guarantee: the first decision stands, whoever gave it; the same again is `replayed`, the other is `state_conflict`, also
    after the message was sent and deleted, as long as its key is kept. A confirmed message takes its place in its line now.
    Race: against another decision and against the answer of a check, whoever locks the row first. Raises: as values also
    `not_found`, `forbidden`.
    """
    return _Deciding(tx, commands).run()


@dataclass(slots=True)
class _Deciding:
    tx: Tx
    commands: Sequence[Decide]
    rows: dict[bytes, Any] = field(default_factory=dict)
    contents: dict[bytes, Any] = field(default_factory=dict)
    firsts: dict[bytes, Decide] = field(default_factory=dict)  # by message: what decides it in this unit
    stands: dict[bytes, Decision] = field(default_factory=dict)
    names: flows.Names = field(init=False)

    def run(self) -> list[Decided | Refusal]:
        ids = sorted({command.id for command in self.commands})
        self.names = flows.Names(self.tx)
        self.rows = {bytes(row.id): row for row in held.lock_messages(self.tx, ids)}
        self.contents = {bytes(row.message_id): row for row in work.select_contents(self.tx, list(self.rows))}
        for command in self.commands:
            row = self.rows.get(command.id)
            if row is not None and row.state == State.PREPARED and self._allows(command, row):
                self.firsts.setdefault(command.id, command)
        if self.firsts:
            self._apply()
        self._read_what_stands(ids)
        return [self._answer(command) for command in self.commands]

    def _allows(self, command: Decide, row: Any) -> bool:
        return command.caller.principal.allows(self.names[row.flow_id][0])

    # -- the write -----------------------------------------------------------------------------------------------------

    def _apply(self) -> None:
        ids = sorted(self.firsts)
        asked = {bytes(row.message_id): row for row in store.select_checks(self.tx, ids)}
        states = self._states()
        known = destinations.read(self.tx, {self.names[self.rows[one].flow_id][0] for one in ids})
        moved = [self._move(self.firsts[one], states.get(one, State.ABORTED), known) for one in ids]
        held.update_moved(self.tx, State.PREPARED, [move.change for move in moved])
        store.delete_checks(self.tx, ids)
        moves.follow(self.tx, moved, in_line=False)
        needed = [self.firsts[one] for one in ids if one in asked and asked[one].state == Check.OPERATOR]
        if needed:
            audit(self.tx, [self._entry(command) for command in needed])

    def _states(self) -> dict[bytes, State]:
        """The states that confirmed messages get, in their lines in the order in which they were confirmed."""
        confirmed = [command.id for command in self.firsts.values() if command.decision is Decision.CONFIRMED]
        lines, states = Entering(self.tx), {}
        ordered = {one: self._line(one) for one in confirmed if self.contents[one].ordering_key is not None}
        lines.open(ordered.values())
        for one in confirmed:
            later = self.rows[one].available_at > self.tx.now
            states[one] = State.DELAYED if later else State.PENDING
            if one in ordered and not lines.enter(one, ordered[one]):
                states[one] = State.BLOCKED
        lines.write()
        if ordered:
            store.update_ordered(self.tx, sorted(ordered))
        return states

    def _line(self, message_id: bytes) -> bytes:
        destination, _ = self.names[self.rows[message_id].flow_id]
        return line_digest(destination, bytes(self.contents[message_id].ordering_key).decode())

    def _move(self, command: Decide, state: State, known: dict[str, Destination]) -> moves.Move:
        row, caller = self.rows[command.id], command.caller
        move = moves.to(self.tx, row, state, known.get(self.names[row.flow_id][0]))
        if state is not State.ABORTED:
            move.change["b_available_at"] = max(row.available_at, self.tx.now)
        if state is State.DELAYED:
            move.change["b_due_at"] = row.available_at
        move.change["b_ended_request_id"] = caller.request_id
        identity = self.tx.memo.setdefault(("decision", command.id), new_id())
        move.events = [
            moves.event(
                self.tx, row, _KINDS[command.decision], id=identity, actor=caller.principal.key_id,
                request_id=caller.request_id, attempt=None, fence=None, grant_digest=None,
            )
        ]  # fmt: skip
        self.tx.memo["decided", command.id] = command
        return move

    def _entry(self, command: Decide) -> Entry:
        destination, _ = self.names[self.rows[command.id].flow_id]
        return Entry(
            id=command.audit_id, by=command.caller.principal, action="outbox.decide_message", kind="message",
            target=id_text(command.id), request_id=command.caller.request_id,
            details={"decision": command.decision.value, "destination": destination},
        )  # fmt: skip

    # -- the answers ---------------------------------------------------------------------------------------------------

    def _read_what_stands(self, ids: list[bytes]) -> None:
        self.stands = {bytes(row.message_id): Decision(row.kind) for row in store.select_decisions(self.tx, ids)}
        if self.firsts:
            self.rows |= {bytes(row.id): row for row in held.lock_messages(self.tx, sorted(self.firsts))}

    def _answer(self, command: Decide) -> Decided | Refusal:
        row = self.rows.get(command.id)
        if row is None:
            return self._of_gone(command)
        if not self._allows(command, row):
            return out_of_pattern()
        stands = self.stands.get(command.id)
        if stands is None:
            return conflict(State(row.state), "It was not prepared, so there is nothing to decide.")
        if stands is not command.decision:
            return _decided_otherwise(stands, State(row.state))
        ours = self.firsts.get(command.id) is command or (
            self.tx.repeated and self.tx.memo.get(("decided", command.id)) is command
        )
        return Decided(self._message(row), replayed=not ours)

    def _message(self, row: Any) -> Message:
        return told(message_of(row, self.names), self.contents[bytes(row.id)])

    def _of_gone(self, command: Decide) -> Decided | Refusal:
        """What was deleted as it was sent was not aborted."""
        rows = held.select_keys_of(self.tx, [command.id])
        if not rows:
            return not_found("message")
        if not self._allows(command, rows[0]):
            return out_of_pattern()
        if command.decision is Decision.ABORTED:
            return _decided_otherwise(Decision.CONFIRMED, State.SENT)
        return Decided(gone(rows[0], self.names), replayed=True)


def _decided_otherwise(stands: Decision, state: State) -> Refusal:
    why = f"The message was {stands} before, and that stands; it is {state.text}."
    return Refusal(STATE_CONFLICT, why, extra={"state": state.text, "decision": stands.value})
