"""The message machine against a model of it: states, lines, doubts, and that nothing which may have been sent is sent again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.db.metadata import metadata
from app.errors import Refusal
from app.primitives.outbox.model.commands import Granted
from app.primitives.outbox.model.destinations import LateAck, OnLeaseLoss
from app.primitives.outbox.model.finding import Doubtful
from app.primitives.outbox.model.records import Message
from app.primitives.outbox.model.states import State, Verdict
from app.primitives.outbox.tables import outbox_messages
from tests.primitives.jobs.test_machine import run
from tests.primitives.outbox.driving import (
    Host,
    Outbox,
    good,
    new_message,
    reason,
    rejected,
    released,
    retried,
    sent,
    unknown,
)
from tests.primitives.outbox.lined import check

OUTCOMES = {
    "sent": sent,
    "retried": retried,
    "retried at once": lambda grant: retried(grant, delay=0),
    "rejected": rejected,
    "unknown": unknown,
    "released": released,
    "released for later": lambda grant: released(grant, delay=30),
}
DESTINATIONS: dict[str, dict[str, Any]] = {
    "plain": {"max_attempts": 2, "backoff_seconds": (20.0,)},
    "bears": {
        "max_attempts": 2,
        "backoff_seconds": (20.0,),
        "idempotent": True,
        "on_lease_loss": OnLeaseLoss.RETRY,
        "late_ack": LateAck.ACCEPT,
    },
    "gone": {"max_attempts": 2, "backoff_seconds": (20.0,), "delete_sent": True},
}
ENDED = (State.SENT, State.DEAD, State.ABORTED)
LEFT_BY = {Verdict.SENT: State.SENT, Verdict.RETRY: State.PENDING, Verdict.DEAD: State.DEAD}


@dataclass
class Known:
    """What the model knows of one message. `doubtful`: somebody may have sent it, and nothing has said that it was not."""

    id: bytes
    key: str
    destination: str
    order: str | None
    state: State
    available_at: int
    position: int = 0
    due: int | None = None
    grant: Granted | None = None
    lost: Granted | None = None
    finder: Doubtful | None = None
    doubtful: bool = False

    @property
    def line(self) -> tuple[str, str] | None:
        return None if self.order is None else (self.destination, self.order)

    @property
    def waits(self) -> bool:
        return self.state not in (*ENDED, State.PREPARED)


class Machine(RuleBasedStateMachine):
    """Rules act on the database and on the model; the invariants hold them against each other after every step."""

    jobs: Outbox  # the name under which `run` hands it over

    def __init__(self) -> None:
        super().__init__()
        self.box = self.jobs
        self.box.host.states["outbox"] = Host().states["outbox"]
        empty(self.box)
        for name, fields in DESTINATIONS.items():
            self.box.put(name, **fields)
        self.known: dict[bytes, Known] = {}
        self.gone: dict[str, bytes] = {}
        self.positions = self.keys = 0

    # -- the model -----------------------------------------------------------------------------------------------------

    def some(self, *states: State) -> list[Known]:
        return [one for one in self.known.values() if one.state in states]

    def enter(self, one: Known) -> None:
        """It comes to its line, behind all that were recorded or confirmed before."""
        self.positions += 1
        one.position = self.positions
        others = [other for other in self.known.values() if other.line == one.line and other is not one and other.waits]
        if one.line is not None and others:
            one.state, one.due = State.BLOCKED, None

    def advance(self) -> None:
        """In each line without anybody under way, the first of those that wait goes."""
        lines = {one.line for one in self.known.values() if one.line is not None}
        for line in lines:
            mine = [one for one in self.known.values() if one.line == line and one.waits]
            if mine and all(one.state is State.BLOCKED for one in mine):
                first = min(mine, key=lambda one: one.position)
                later = first.available_at > self.box.now
                first.state, first.due = (State.DELAYED, first.available_at) if later else (State.PENDING, None)

    def leave(self, one: Known, state: State, due: int | None = None, *, kept: bool = False) -> None:
        """`kept`: what is judged is kept for its retention, also where sent messages are deleted."""
        one.state, one.due, one.grant = state, due, None
        if due is not None:
            one.available_at = due
        if state is State.SENT and one.destination == "gone" and not kept:
            self.gone[one.key] = self.known.pop(one.id).id
        self.advance()

    def learn(self, message: Message, order: str | None) -> Known:
        due = message.available_at if message.state is State.DELAYED else None
        one = Known(
            message.id, message.message_key or "", message.flow[0], order, message.state, message.available_at, due=due
        )
        self.known[one.id] = one
        return one

    # -- producers -----------------------------------------------------------------------------------------------------

    @initialize(held=st.booleans())
    def begin(self, held: bool) -> None:
        """An empty table teaches little."""
        for name in DESTINATIONS:
            for order in ("x", "x", None):
                self.record(name, order, later=False, by_sql=False, prepared=False)
            if held:
                self.claim(name, 2)

    @rule(
        name=st.sampled_from(sorted(DESTINATIONS)),
        order=st.sampled_from([None, "x", "x", "y"]),
        later=st.booleans(),
        by_sql=st.booleans(),
        prepared=st.booleans(),
    )
    def record(self, name: str, order: str | None, later: bool, by_sql: bool, prepared: bool) -> None:
        self.keys += 1
        key = f"k{self.keys}"
        at = self.box.now + 30_000_000 if later else None
        if by_sql:
            self.box.write(message_key=key, destination=name, ordering_key=order, available_at=at)
            assert self.box.adopt() == 1
            (row,) = [row for row in self.box.rows(outbox_messages) if bytes(row.id) not in self.known]
            message = self.box.message(bytes(row.id))
            one = self.learn(message, order)
            one.key = key
        elif prepared:
            message = self.box.prepare(600, destination=name, order=order, available_at=at, key=key)
            one = self.learn(message, order)
            assert one.state is State.PREPARED
            return
        else:
            message = self.box.record(name, order=order, available_at=at, key=key)
            one = self.learn(message, order)
        one.state, one.due = (State.DELAYED, one.available_at) if later else (State.PENDING, None)
        self.enter(one)

    @precondition(lambda self: self.known or self.gone)
    @rule(data=st.data())
    def record_again(self, data: st.DataObject) -> None:
        """A key that is known makes no second message, whatever has become of the first."""
        ids = {one.key: one.id for one in self.known.values()} | self.gone
        key = data.draw(st.sampled_from(sorted(ids)))
        (outcome,) = self.box.record_all(new_message("plain", key=key, payload=b'"other"'))
        assert isinstance(outcome, Refusal)

    @precondition(lambda self: self.some(State.PREPARED))
    @rule(data=st.data(), confirmed=st.booleans())
    def decide(self, data: st.DataObject, confirmed: bool) -> None:
        one = data.draw(st.sampled_from(self.some(State.PREPARED)))
        if not confirmed:
            assert self.box.abort(one.id).message.state is State.ABORTED
            self.leave(one, State.ABORTED)
            return
        message = self.box.confirm(one.id).message
        later = one.available_at > self.box.now
        one.state, one.due = (State.DELAYED, one.available_at) if later else (State.PENDING, None)
        self.enter(one)
        assert message.state is one.state

    # -- holders -------------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(sorted(DESTINATIONS)), limit=st.integers(1, 3))
    def claim(self, name: str, limit: int) -> None:
        ready = [one for one in self.some(State.PENDING) if one.destination == name]
        grants = self.box.claim(name, limit=limit)
        assert len(grants) == min(limit, len(ready))
        for grant in grants:
            one = self.known[grant.id]
            assert one.state is State.PENDING
            assert not one.doubtful or name == "bears", "it may have been sent, and nobody has said that it was not"
            one.state, one.grant, one.due, one.doubtful = State.SENDING, grant, grant.expires_at, True

    @precondition(lambda self: self.some(State.SENDING))
    @rule(data=st.data(), name=st.sampled_from(sorted(OUTCOMES)))
    def settle(self, data: st.DataObject, name: str) -> None:
        one = data.draw(st.sampled_from(self.some(State.SENDING)))
        assert one.grant is not None
        grant, expired = one.grant, (one.due or 0) <= self.box.now
        (outcome,) = self.box.settle_all(OUTCOMES[name](grant))
        if expired and not (name == "sent" and one.destination == "bears"):
            assert reason(outcome) == "expired"
            return
        settled = good(outcome)
        if name.startswith(("retried", "released")):
            one.doubtful = False  # the holder says that it was certainly not accepted
        self.leave(one, settled.state, settled.available_at if settled.state is State.DELAYED else None)

    @precondition(lambda self: any(one.lost for one in self.known.values()))
    @rule(data=st.data(), name=st.sampled_from(["sent", "retried", "rejected"]))
    def late(self, data: st.DataObject, name: str) -> None:
        """A holder that was lost speaks after all."""
        one = data.draw(st.sampled_from([one for one in self.known.values() if one.lost]))
        before, lost = one.state, one.lost
        assert lost is not None
        (outcome,) = self.box.settle_all(OUTCOMES[name](lost))
        if name == "sent" and one.destination == "bears":
            assert good(outcome).state is State.SENT
            if before is not State.SENT:
                self.leave(one, State.SENT)
        else:
            assert isinstance(outcome, Refusal)

    @precondition(lambda self: self.some(State.SENDING))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.some(State.SENDING)))
        assert one.grant is not None
        self.box.give_back(one.grant)
        if (one.due or 0) > self.box.now:
            one.doubtful = False
            self.leave(one, State.PENDING)

    # -- who finds out -------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(sorted(DESTINATIONS)))
    def find(self, name: str) -> None:
        self.box.look()
        for doubtful in self.box.claim_doubts(name):
            one = self.known[doubtful.message.id]
            assert one.state is State.UNKNOWN
            one.finder = doubtful

    @precondition(lambda self: any(one.finder for one in self.known.values()))
    @rule(data=st.data(), verdict=st.sampled_from([None, *Verdict]))
    def found(self, data: st.DataObject, verdict: Verdict | None) -> None:
        one = data.draw(st.sampled_from([one for one in self.known.values() if one.finder]))
        finder, one.finder = one.finder, None
        assert finder is not None
        outcome = self.box.find(finder, verdict)
        if not isinstance(outcome, Refusal) and verdict is not None:
            assert one.state is State.UNKNOWN
            self.judged(one, verdict)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), verdict=st.sampled_from(list(Verdict)))
    def reconcile(self, data: st.DataObject, verdict: Verdict) -> None:
        one = data.draw(st.sampled_from(list(self.known.values())))
        if one.state is State.UNKNOWN:
            self.box.reconcile(one.id, verdict)
            self.judged(one, verdict)

    def judged(self, one: Known, verdict: Verdict) -> None:
        one.doubtful = verdict is not Verdict.RETRY and one.doubtful
        if verdict is Verdict.RETRY:
            one.available_at = self.box.now
        self.leave(one, LEFT_BY[verdict], kept=True)

    # -- housekeeping --------------------------------------------------------------------------------------------------

    @rule()
    def requeue(self) -> None:
        dead = sorted(self.some(State.DEAD), key=lambda one: one.id)
        assert self.box.requeue().changed == len(dead)
        for one in dead:
            # an operator takes it on: what is dead was refused, given up, or judged
            one.doubtful, one.available_at = False, self.box.now
            busy = any(other.line == one.line and other.waits for other in self.known.values())
            one.state, one.due = State.BLOCKED if one.line is not None and busy else State.PENDING, None

    @rule()
    def release_stale(self) -> None:
        self.box.release_stale(seconds=50)
        for one in self.some(State.SENDING):
            if one.grant is not None and one.grant.expires_at - 10_000_000 <= self.box.now:
                one.lost = one.grant
                self.leave(one, State.PENDING if one.destination == "bears" else State.UNKNOWN)

    @rule(state=st.sampled_from(ENDED))
    def purge(self, state: State) -> None:
        self.box.purge_messages(state)
        for one in self.some(state):
            del self.known[one.id]

    @rule(seconds=st.sampled_from([15, 40, 70]))
    def time_passes(self, seconds: int) -> None:
        self.box.move(seconds)

    @rule()
    def promote(self) -> None:
        self.box.promote()
        for one in self.some(State.DELAYED):
            if (one.due or 0) <= self.box.now:
                one.state, one.due = State.PENDING, None

    @precondition(lambda self: self.some(State.SENDING))
    @rule(wait=st.booleans())
    def abandon(self, wait: bool) -> None:
        if wait:
            self.box.move(61)
        self.box.abandon()
        for one in self.some(State.SENDING):
            if (one.due or 0) <= self.box.now:
                left = self.box.message(one.id)
                expected = (State.DELAYED, State.DEAD) if one.destination == "bears" else (State.UNKNOWN,)
                assert left.state in expected
                one.lost = one.grant
                self.leave(one, left.state, left.due_at if left.state is State.DELAYED else None)

    # -- what always holds ---------------------------------------------------------------------------------------------

    @invariant()
    def the_database_is_what_the_model_says(self) -> None:
        found = {bytes(row.id): State(row.state) for row in self.box.rows(outbox_messages)}
        assert found == {one.id: one.state for one in self.known.values()}

    @invariant()
    def the_tables_agree(self) -> None:
        check(self.box)


def empty(box: Outbox) -> None:
    def delete(tx: Any, commands: Any) -> Any:
        for table in reversed(metadata.sorted_tables):
            if "outbox" in table.name:
                tx.conn.execute(table.delete())
        return commands

    box.database.run(delete, [None])


@pytest.mark.engines("sqlite")
def test_no_history_leads_the_embedded_database_away_from_the_model(box: Outbox) -> None:
    run(Machine, box, examples=80, steps=40)


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_no_history_leads_a_server_away_from_the_model(box: Outbox) -> None:
    run(Machine, box, examples=12, steps=30)
