"""Record: intents come to be, over HTTP or taken over from the table that producers write to themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.access import Caller
from app.clock import MICROS
from app.db.tx import Tx
from app.errors import IDEMPOTENCY_CONFLICT, Refusal
from app.primitives.outbox.model.commands import NewMessage, Record, Recorded
from app.primitives.outbox.model.keys import line_digest
from app.primitives.outbox.model.records import Message
from app.primitives.outbox.model.states import Check, Kind, State
from app.primitives.outbox.ops import destinations, flows
from app.primitives.outbox.ops.lines import Entering
from app.primitives.outbox.ops.records import message_of, told
from app.primitives.outbox.ops.refusals import unknown_destination
from app.primitives.outbox.store import work as store
from app.primitives.outbox.store.checks import insert_checks, select_checks


def record(tx: Tx, commands: Sequence[Record]) -> list[list[Recorded | Refusal]]:
    """Insert the messages of all commands in one go.

    Guarantee: a message whose `Recorded` was answered is on disk. A message key that is there gives its message (`replayed`)
    if the content is the same, also after it has been sent, else `idempotency_conflict`. Race: of two recordings with one key,
    one inserts; the other's unit fails as a duplicate, runs again and finds the first. Raises: as values also
    `validation_failed` for a destination that was not set.
    """
    work = Recording(tx)
    work.open([one for command in commands for one in command.messages])
    outcomes = [[work.decide(one, command.caller) for one in command.messages] for command in commands]
    work.write()
    return outcomes


@dataclass(slots=True)
class _Made:
    new: NewMessage
    caller: Caller
    message: Message
    at: int


@dataclass(slots=True)
class Recording:
    """One transaction's worth of recording: decides message by message, writes table by table."""

    tx: Tx
    known: set[str] = field(default_factory=set)  # destinations
    there: dict[bytes, tuple[bytes, Message]] = field(default_factory=dict)  # by key: fingerprint, message
    made: list[_Made] = field(default_factory=list)
    ours: set[bytes] = field(default_factory=set)
    lines: Entering = field(init=False)

    def __post_init__(self) -> None:
        self.lines = Entering(self.tx)

    def open(self, news: Sequence[NewMessage]) -> None:
        """Read what decides, and lock the lines of what may be new."""
        self.ours = {one.id for one in news}
        self.known = set(destinations.read(self.tx, {one.flow[0] for one in news}))
        self._look_up({one.key_digest for one in news})
        self.lines.open(_line(one) for one in news if _stands_in_line(one) and one.key_digest not in self.there)

    def _look_up(self, digests: set[bytes]) -> None:
        keys = store.select_keys(self.tx, sorted(digests)) if digests else ()
        ids = [row.message_id for row in keys]
        names = flows.Names(self.tx)
        rows = {bytes(row.id): row for row in store.select_messages(self.tx, ids)} if ids else {}
        prepared = [one for one, row in rows.items() if row.state == State.PREPARED]
        until = {bytes(row.message_id): row.decide_at for row in (select_checks(self.tx, prepared) if prepared else ())}
        contents = {bytes(row.message_id): row for row in store.select_contents(self.tx, ids)} if ids else {}
        for key in keys:
            message_id = bytes(key.message_id)
            if message_id in rows and message_id in contents:
                message = told(message_of(rows[message_id], names), contents[message_id])
                message = replace(message, decide_at=until.get(message_id))
            else:
                message = gone(key, names)
            self.there[bytes(key.digest)] = (bytes(key.fingerprint), message)

    def decide(self, new: NewMessage, caller: Caller) -> Recorded | Refusal:
        if new.key_digest in self.there:
            fingerprint, message = self.there[new.key_digest]
            if fingerprint != new.fingerprint:
                return Refusal(IDEMPOTENCY_CONFLICT, "This message key belongs to a message with other content.")
            # an earlier try of this very unit made it
            first = self.tx.repeated and message.id == new.id
            return Recorded(_as_sent(message, new), replayed=not first)
        if new.flow[0] not in self.known:
            return unknown_destination()
        return Recorded(self.make(new, caller, self.tx.now))

    def make(self, new: NewMessage, caller: Caller, at: int) -> Message:
        """A new message, recorded at this moment."""
        available_at = max(self.tx.now, new.available_at or 0)
        state = State.DELAYED if available_at > self.tx.now else State.PENDING
        due_at = available_at if state is State.DELAYED else None
        if new.prepare is not None:
            state, due_at = State.PREPARED, self.tx.now + new.prepare.decide_within
        elif _stands_in_line(new) and not self.lines.enter(new.id, _line(new)):
            state, due_at = State.BLOCKED, None
        message = _as_sent(
            Message(
                id=new.id, flow=new.flow, state=state, available_at=available_at,
                due_at=due_at, fence=0, attempt=0, lease_losses=0, releases=0,
                max_attempts=new.max_attempts, created_at=self.tx.now,
                occurred_at=at if new.occurred_at is None else new.occurred_at,
                decide_at=due_at if state is State.PREPARED else None,
            ),
            new,
        )  # fmt: skip
        self.made.append(_Made(new, caller, message, at))
        self.there[new.key_digest] = (new.fingerprint, message)
        return message

    def write(self) -> None:
        if not self.made:
            return
        ids = flows.resolve(self.tx, {one.new.flow for one in self.made})
        # keys first, and in one order everywhere: a duplicate is found before anything else was written
        keys = [_key(one, ids[one.new.flow]) for one in self.made]
        store.insert_keys(self.tx, sorted(keys, key=lambda row: bytes(row["digest"])))
        store.insert_messages(self.tx, [_hot(one, ids[one.new.flow]) for one in self.made])
        store.insert_contents(self.tx, [_content(one) for one in self.made])
        if prepared := [one for one in self.made if one.new.prepare is not None]:
            insert_checks(self.tx, [_check(one, ids[one.new.flow]) for one in prepared])
        self.lines.write()
        self.tx.on_commit(self._tell)

    def _tell(self) -> None:
        memory = flows.here(self.tx)
        memory.count(Counter((one.new.flow, Kind.RECORDED.value) for one in self.made))
        ready = Counter(one.new.flow for one in self.made if one.message.state is State.PENDING)
        later = [one.message.available_at for one in self.made if one.message.state is State.DELAYED]
        if ready:
            memory.wake(ready)
        if later:
            memory.promote_in((min(later) - self.tx.now) / MICROS)


def _stands_in_line(new: NewMessage) -> bool:
    """A prepared message comes to its line when it is confirmed: what may yet be aborted holds nobody up."""
    return new.ordering_key is not None and new.prepare is None


def _line(new: NewMessage) -> bytes:
    return line_digest(new.flow[0], new.ordering_key or "")


def gone(key: Any, names: flows.Names) -> Message:
    """What is left of a message that was deleted as it was sent."""
    return Message(
        id=bytes(key.message_id), flow=names[key.flow_id], state=State.SENT, available_at=key.created_at, due_at=key.purge_at,
        fence=key.fence or 0, attempt=key.attempt or 0, lease_losses=0, releases=0, max_attempts=None, created_at=key.created_at,
        ended_at=key.ended_at, reference=key.reference,
    )  # fmt: skip


def _as_sent(message: Message, new: NewMessage) -> Message:
    """The same content was sent again: what its row does not hold stands in the request."""
    return replace(
        message,
        message_key=new.message_key,
        schema_version=new.schema_version,
        ordering_key=new.ordering_key,
        correlation_id=new.correlation_id,
        target_reference=new.target_reference,
        max_attempts=new.max_attempts,
        occurred_at=new.occurred_at if message.occurred_at is None else message.occurred_at,
    )


def _key(one: _Made, flow_id: int) -> dict[str, Any]:
    return {
        "digest": one.new.key_digest,
        "message_id": one.new.id,
        "flow_id": flow_id,
        "fingerprint": one.new.fingerprint,
        "created_at": one.message.created_at,
    }


def _hot(one: _Made, flow_id: int) -> dict[str, Any]:
    message = one.message
    return {
        "id": message.id,
        "flow_id": flow_id,
        "state": int(message.state),
        "available_at": message.available_at,
        "due_at": message.due_at,
        "max_attempts": message.max_attempts,
        "created_at": message.created_at,
        "ordered": int(_stands_in_line(one.new)),
    }


def _check(one: _Made, flow_id: int) -> dict[str, Any]:
    prepare = one.new.prepare
    url = None if prepare is None or prepare.check_url is None else prepare.check_url.encode()
    return {
        "message_id": one.message.id,
        "flow_id": flow_id,
        "state": int(Check.OPEN),
        "decide_at": one.message.due_at,
        "url": url,
    }


def _content(one: _Made) -> dict[str, Any]:
    new = one.new
    return {
        "message_id": new.id,
        "message_key": new.message_key.encode(),
        "schema_version": new.schema_version,
        "payload": new.payload,
        "occurred_at": one.message.occurred_at,
        "ordering_key": None if new.ordering_key is None else new.ordering_key.encode(),
        "correlation_id": new.correlation_id,
        "target_reference": new.target_reference,
        "traceparent": one.caller.traceparent,
        "request_id": one.caller.request_id,
        "created_by": one.caller.principal.key_id,
    }
