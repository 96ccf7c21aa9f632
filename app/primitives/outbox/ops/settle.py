"""Settle: a holder says what became of its message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app import reservations
from app.access import Caller
from app.db.tx import Tx
from app.errors import Refusal
from app.primitives.outbox.model.commands import Settle, Settled, Settlement
from app.primitives.outbox.model.destinations import Destination
from app.primitives.outbox.model.states import Kind, Outcome, State
from app.primitives.outbox.ops import destinations, flows, late, lines, moves
from app.primitives.outbox.ops.refusals import lost, out_of_pattern
from app.primitives.outbox.store import held as store
from app.reservations import settled_otherwise

Place = tuple[int, int]


@dataclass(slots=True)
class _Due:
    """One settlement that holds the newest reservation of a message that is being sent."""

    place: Place
    item: Settlement
    caller: Caller
    row: Any


def settle(tx: Tx, commands: Sequence[Settle]) -> list[list[Settled | Refusal]]:
    """sending -> the state that each settlement asks for.

    Guarantee: counts only with the token of the newest, unexpired reservation, once; the rows stay locked from the check to
    the write, and the write repeats the condition. A repeat with the same content is answered as before (`replayed`), also
    after the message was deleted; other content is `settlement_conflict`, anything else `reservation_lost`. What a holder
    says whose lease was lost is kept as evidence, or counts, where the destination bears that. Race: against a sweep, whoever
    locks the row first.
    """
    return _Settling(tx, commands).run()


@dataclass(slots=True)
class _Settling:
    tx: Tx
    commands: Sequence[Settle]
    answers: dict[Place, Settled | Refusal] = field(default_factory=dict)
    firsts: dict[bytes, _Due] = field(default_factory=dict)  # by message: what is settled in this unit
    again: list[tuple[Place, Settlement]] = field(default_factory=list)
    olders: list[late.Late] = field(default_factory=list)
    gone: list[tuple[Place, Settlement, Caller]] = field(default_factory=list)
    names: flows.Names = field(init=False)
    known: dict[str, Destination] = field(default_factory=dict)

    def run(self) -> list[list[Settled | Refusal]]:
        self.names = flows.Names(self.tx)
        ids = sorted({item.id for command in self.commands for item in command.items})
        rows = {bytes(row.id): row for row in store.lock_messages(self.tx, ids)}
        self.known = destinations.read(self.tx, {self.names[row.flow_id][0] for row in rows.values()})
        for index, command in enumerate(self.commands):
            for position, item in enumerate(command.items):
                self._judge((index, position), item, command.caller, rows.get(item.id))
        self._apply()
        late.answer_gone(self.tx, self.gone, self.answers)
        late.answer(self.tx, self.olders, self.answers, self._destination)
        for place, item in self.again:
            self.answers[place] = self._same_unit(item)
        return [
            [self.answers[index, position] for position in range(len(command.items))]
            for index, command in enumerate(self.commands)
        ]

    def _destination(self, row: Any) -> Destination:
        name = self.names[row.flow_id][0]
        return self.known.get(name, Destination(name))

    def _judge(self, place: Place, item: Settlement, caller: Caller, row: Any) -> None:
        if row is None:
            self.gone.append((place, item, caller))
            return
        token = reservations.present(item.token)
        if not caller.principal.allows(self.names[row.flow_id][0]):
            self.answers[place] = out_of_pattern()
        elif token is None:
            self.answers[place] = lost("unknown_token", row.fence)
        elif (
            not reservations.matches(self.tx.host.token_key, token, row.grant_digest, bytes(row.id), row.fence)
            or row.state != State.SENDING
            or row.due_at <= self.tx.now
        ):
            self.olders.append(late.Late(place, item, caller, row, token))
        elif bytes(row.id) in self.firsts:
            self.again.append((place, item))
        else:
            self.firsts[bytes(row.id)] = _Due(place, item, caller, row)

    def _same_unit(self, item: Settlement) -> Settled | Refusal:
        first = self.firsts[item.id]
        answer = self.answers[first.place]
        if isinstance(answer, Refusal):
            return answer
        if first.item.digest != item.digest:
            return settled_otherwise()
        return Settled(answer.id, answer.state, answer.attempt, answer.available_at, replayed=True)

    # -- the write -----------------------------------------------------------------------------------------------------

    def _apply(self) -> None:
        sent = [due for due in self.firsts.values() if due.item.outcome is Outcome.SENT]
        other = {
            key: moves.settled(self.tx, due.row, self._destination(due.row), due.item, due.caller)
            for key, due in self.firsts.items()
            if due.item.outcome is not Outcome.SENT
        }
        written = self._write_sent(sent) if sent else 0
        if other:
            written += store.update_settled(self.tx, [move.change for move in other.values()])
        expired: set[bytes] = set()
        if written != len(self.firsts):
            # between the lock and the write the lease ran out by the database's clock
            expired = store.select_sending(self.tx, list(self.firsts))
        for key, due in self.firsts.items():
            self.answers[due.place] = lost("expired", due.row.fence) if key in expired else _done(due, other.get(key))
        self._follow_sent([due for due in sent if bytes(due.row.id) not in expired])
        moves.follow(self.tx, [move for key, move in other.items() if key not in expired])

    def _write_sent(self, sent: list[_Due]) -> int:
        return store.update_sent(
            self.tx,
            [due.row.grant_digest for due in sent],
            {due.item.id: due.item.digest for due in sent},
            {due.item.id: due.item.reference for due in sent},
            {due.item.id: due.caller.request_id for due in sent},
            {due.item.id: moves.purge_at(self.tx, self._destination(due.row)) for due in sent},
        )

    def _follow_sent(self, sent: list[_Due]) -> None:
        happened = Counter((self.names[due.row.flow_id], Kind.SENT.value) for due in sent)
        self.tx.on_commit(lambda: flows.here(self.tx).count(happened))
        lines.leave(self.tx, sorted(due.item.id for due in sent if due.row.ordered))
        gone = [due for due in sent if self._destination(due.row).delete_sent]
        if gone:
            store.update_keys_left(self.tx, [self._left(due) for due in gone])
            lines.forget(self.tx, sorted(due.item.id for due in gone if due.row.ordered))
            store.delete_messages(self.tx, sorted(due.item.id for due in gone), keys=False)

    def _left(self, due: _Due) -> dict[str, Any]:
        return {
            "b_message_id": due.item.id,
            "b_purge_at": moves.purge_at(self.tx, self._destination(due.row)),
            "b_ended_at": self.tx.now,
            "b_attempt": due.row.attempt,
            "b_fence": due.row.fence,
            "b_grant_digest": due.row.grant_digest,
            "b_settlement_digest": due.item.digest,
            "b_reference": due.item.reference,
        }


def _done(due: _Due, move: moves.Move | None) -> Settled:
    if move is None:
        return Settled(due.item.id, State.SENT, due.row.attempt)
    return Settled(due.item.id, move.state, move.change["b_attempt"], move.available_at)
