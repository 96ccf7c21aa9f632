"""Settle: a worker says how its attempt ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app import reservations
from app.db.tx import Tx
from app.errors import Refusal, not_found
from app.primitives.jobs.model import Caller, Figure, Outcome, Settle, Settled, Settlement, State
from app.primitives.jobs.ops import flows, keys, moves, terminal, terms
from app.primitives.jobs.ops.refusals import lost, out_of_pattern, settled_otherwise
from app.primitives.jobs.store import held as store
from app.primitives.jobs.store import work


@dataclass(slots=True)
class _Due:
    """One settlement that holds the newest reservation of a running job."""

    place: tuple[int, int]
    item: Settlement
    caller: Caller
    row: Any


def settle(tx: Tx, commands: Sequence[Settle]) -> list[list[Settled | Refusal]]:
    """running -> the state that each settlement asks for.

    Guarantee: counts only with the token of the newest, unexpired reservation, once; the rows stay locked from the check to
    the write, and the write repeats the condition. A repeat with the same content is answered as before (`replayed`), other
    content is `settlement_conflict`, anything else `reservation_lost`. Race: against a sweep, whoever locks the row first.
    """
    return _Settling(tx, commands).run()


@dataclass(slots=True)
class _Settling:
    tx: Tx
    commands: Sequence[Settle]
    answers: dict[tuple[int, int], Settled | Refusal] = field(default_factory=dict)
    firsts: dict[bytes, _Due] = field(default_factory=dict)  # by job: what is settled in this unit
    again: list[tuple[tuple[int, int], Settlement]] = field(default_factory=list)
    olders: list[tuple[tuple[int, int], Settlement, Any]] = field(default_factory=list)

    def run(self) -> list[list[Settled | Refusal]]:
        ids = sorted({item.id for command in self.commands for item in command.items})
        rows = {row.id: row for row in store.lock_jobs(self.tx, ids)}
        names = flows.names(self.tx, {row.flow_id for row in rows.values()})
        for index, command in enumerate(self.commands):
            for position, item in enumerate(command.items):
                row = rows.get(item.id)
                if row is None:
                    self.answers[index, position] = not_found("job")
                elif not command.caller.principal.allows(names[row.flow_id][0]):
                    self.answers[index, position] = out_of_pattern()
                else:
                    self._judge((index, position), item, command.caller, row)
        self._apply(names)
        self._answer_older()
        for place, item in self.again:
            self.answers[place] = self._same_unit(item)
        return [
            [self.answers[index, position] for position in range(len(command.items))]
            for index, command in enumerate(self.commands)
        ]

    def _judge(self, place: tuple[int, int], item: Settlement, caller: Caller, row: Any) -> None:
        token = reservations.present(item.token)
        if token is None:
            self.answers[place] = lost("unknown_token", row.fence)
        elif not reservations.matches(self.tx.host.token_key, token, row.grant_digest, row.id, row.fence):
            self.olders.append((place, item, row))
        elif row.state != State.RUNNING:
            self.olders.append((place, item, row))
        elif row.due_at <= self.tx.now:
            self.answers[place] = lost("expired", row.fence)
            self.tx.on_commit(lambda: flows.here(self.tx).abandon_in(0))
        elif row.id in self.firsts:
            self.again.append((place, item))
        else:
            self.firsts[row.id] = _Due(place, item, caller, row)

    def _same_unit(self, item: Settlement) -> Settled | Refusal:
        first = self.firsts[item.id]
        answer = self.answers[first.place]
        if isinstance(answer, Refusal):
            return answer
        if first.item.digest != item.digest:
            return settled_otherwise()
        return Settled(answer.id, answer.state, answer.attempt, answer.available_at, replayed=True)

    # -- the write -----------------------------------------------------------------------------------------------------

    def _apply(self, names: dict[int, Any]) -> None:
        good = [due for due in self.firsts.values() if due.item.outcome is Outcome.SUCCEEDED]
        other = [due for due in self.firsts.values() if due.item.outcome is not Outcome.SUCCEEDED]
        written = 0
        if good:
            written += store.update_succeeded(
                self.tx,
                [due.row.grant_digest for due in good],
                {due.row.id: due.item.digest for due in good},
                {due.row.id: due.caller.request_id for due in good},
                {due.row.id: moves.purge_at(self.tx, names[due.row.flow_id][0]) for due in good},
            )
        whole = {row.id: row for row in work.select_jobs(self.tx, [due.row.id for due in other])} if other else {}
        rules = terms.rules(self.tx, {names[due.row.flow_id] for due in other})
        settled: dict[bytes, moves.Move] = {}
        for due in other:
            row, flow = whole[due.row.id], names[due.row.flow_id]
            settled[row.id] = moves.settled(self.tx, row, flow[0], due.item, due.caller, rules[flow])
        if settled:
            written += store.update_settled(self.tx, [move.change for move in settled.values()])
        late: set[bytes] = set()
        if written != len(self.firsts):
            # between the lock and the write the lease ran out by the database's clock
            late = store.select_running(self.tx, list(self.firsts))
        for due in self.firsts.values():
            self.answers[due.place] = lost("expired", due.row.fence) if due.row.id in late else self._done(due, settled)
        self._keep(
            [due for due in good if due.row.id not in late], [m for key, m in settled.items() if key not in late]
        )
        marked = {due.row.id: due.row.marks for due in self.firsts.values() if due.row.marks and due.row.id not in late}
        if marked:
            states = {key: settled[key].state if key in settled else State.SUCCEEDED for key in marked}
            keys.left(self.tx, {key: (marks, states[key]) for key, marks in marked.items()})

    def _done(self, due: _Due, settled: dict[bytes, moves.Move]) -> Settled:
        if due.item.outcome is Outcome.SUCCEEDED:
            return Settled(due.row.id, State.SUCCEEDED, due.row.attempt)
        move = settled[due.row.id]
        return Settled(due.row.id, move.state, move.change["b_attempt"], move.runs_at)

    def _keep(self, good: list[_Due], settled: list[moves.Move]) -> None:
        results = [{"job_id": due.row.id, "result": due.item.result} for due in good if due.item.result is not None]
        if results:
            store.insert_results(self.tx, results)
        events = [event for move in settled for event in move.events]
        if events:
            store.insert_events(self.tx, events)
        terminal.handle(self.tx, terminal.of_moves(settled))
        moves.tell(self.tx, settled)
        done: dict[tuple[int, Figure], int] = defaultdict(int)
        for due in good:
            done[due.row.flow_id, Figure.SUCCEEDED] += 1
        durations = [(due.row.flow_id, self.tx.now - due.row.claimed_at) for due in good]
        now, memory = self.tx.now, flows.here(self.tx)
        self.tx.on_commit(lambda: memory.count(now, done, durations))

    # -- repeats and late comers ---------------------------------------------------------------------------------------

    def _answer_older(self) -> None:
        if not self.olders:
            return
        tokens = [reservations.present(item.token) for _, item, _ in self.olders]
        grants = sorted({token.digest for token in tokens if token is not None})
        events = store.select_events_of_grants(self.tx, sorted({row.id for _, _, row in self.olders}), grants)
        ran_twice: dict[tuple[int, Figure], int] = defaultdict(int)
        for (place, item, row), token in zip(self.olders, tokens, strict=True):
            assert token is not None, "judged before"
            mine = [
                event
                for event in events
                if event.job_id == row.id
                and event.grant_digest == token.digest
                and reservations.matches(self.tx.host.token_key, token, event.grant_digest, row.id, event.fence)
            ]
            newest = reservations.matches(self.tx.host.token_key, token, row.grant_digest, row.id, row.fence)
            self.answers[place] = answer = _late(item, row, mine, newest=newest)
            if isinstance(answer, Refusal) and answer.extra.get("reason") == "superseded":
                ran_twice[row.flow_id, Figure.DUPLICATE] += 1
        now, memory = self.tx.now, flows.here(self.tx)
        self.tx.on_commit(lambda: memory.count(now, ran_twice))


def _late(item: Settlement, row: Any, events: list[Any], *, newest: bool) -> Settled | Refusal:
    """The answer to a token whose reservation has ended: `events` tell how, unless the work succeeded (the row tells)."""
    ended = next((event for event in reversed(events) if event.settlement_digest is not None), None)
    if ended is not None:
        if ended.settlement_digest != item.digest:
            return settled_otherwise()
        state, runs_at, attempt = moves.read_detail(ended.detail)
        return Settled(row.id, state, attempt, runs_at, replayed=True)
    if newest and row.settlement_digest is not None:
        if row.settlement_digest != item.digest:
            return settled_otherwise()
        return Settled(row.id, State(row.state), row.attempt, replayed=True)
    if newest:
        return lost("cancelled" if row.state == State.CANCELLED else "expired", row.fence)
    return lost("superseded" if events else "unknown_token", row.fence)
