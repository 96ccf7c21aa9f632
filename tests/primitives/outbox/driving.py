"""Drives the verbs of the outbox without HTTP: a minimal host, and each verb in one line."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event, insert, select

from app.access import ANONYMOUS, Caller
from app.clock import micros
from app.db.database import Database
from app.db.tx import Tx
from app.errors import Refusal
from app.ids import new_id
from app.outgoing.vault import Vault
from app.primitives.outbox.here import Here
from app.primitives.outbox.model.checks import Answer
from app.primitives.outbox.model.commands import (
    Beat,
    Claim,
    Claimed,
    Decide,
    Decided,
    Granted,
    NewMessage,
    Prepare,
    Record,
    Recorded,
    Renew,
    Renewed,
    Settle,
    Settled,
    Settlement,
)
from app.primitives.outbox.model.destinations import Destination
from app.primitives.outbox.model.finding import Doubtful, Finding, Inquiry, Reading, finding_digest
from app.primitives.outbox.model.keys import fingerprint, key_digest
from app.primitives.outbox.model.records import Message, Reconcile
from app.primitives.outbox.model.states import Decision, Flow, Outcome, ReleaseReason, State, Verdict
from app.primitives.outbox.ops import adopt, checks, control, destinations, finding, inquiries, sweep
from app.primitives.outbox.ops.claim import claim
from app.primitives.outbox.ops.decide import decide
from app.primitives.outbox.ops.flows import Names
from app.primitives.outbox.ops.record import record
from app.primitives.outbox.ops.records import message_of
from app.primitives.outbox.ops.renew import renew
from app.primitives.outbox.ops.settle import settle
from app.primitives.outbox.store import work as store
from app.primitives.outbox.tables import outbox, outbox_events
from app.reservations import settlement_digest
from app.settings import Settings

CALLER = Caller(ANONYMOUS, "request-1")
TOKEN_KEY = secrets.token_bytes(32)


class Host:
    """What an op needs of a process: settings, the token key, and its memory of the outbox. Records what it is told."""

    def __init__(self, settings: Settings | None = None, token_key: bytes = TOKEN_KEY) -> None:
        self.settings = settings or Settings()
        self.token_key = token_key
        self.woken: list[dict[Flow, int]] = []
        self.promotions: list[float] = []
        self.abandonments: list[float] = []
        self.states: dict[str, Any] = {
            "outbox": Here(
                wake=lambda flows: self.woken.append(dict(flows)),
                promote_in=self.promotions.append,
                abandon_in=self.abandonments.append,
            ),
            "vault": Vault([secrets.token_bytes(32)]),
        }

    def state(self, name: str) -> Any:
        return self.states[name]

    def set(self, **settings: Any) -> None:
        """Change settings, as a process with others would have them."""
        self.settings = self.settings.model_copy(update=settings)


@dataclass
class Outbox:
    """The verbs of one process. What is refused is given as a value by the plural verbs, and raised by the others."""

    database: Database
    host: Host
    caller: Caller = CALLER
    woken: list[dict[Flow, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.database.host = self.host
        self.woken = self.host.woken

    @property
    def now(self) -> int:
        return self.database.clock.now()

    def move(self, seconds: float) -> None:
        """Move the database's time as this process sees it."""
        self.database.clock.shift_micros += micros(seconds)

    # -- destinations ----------------------------------------------------------------------------------------------------

    def put(self, name: str = "d", **fields: Any) -> Destination:
        """Set a destination, as an operator does."""
        (stored,) = self.database.run(
            destinations.put, [destinations.Put(Destination(name, **fields), self.caller, new_id())]
        )
        made: Destination = stored.destination
        return made

    # -- record ----------------------------------------------------------------------------------------------------------

    def record_all(self, *new: NewMessage, caller: Caller | None = None) -> list[Recorded | Refusal]:
        """One request's messages."""
        (outcomes,) = self.database.run(record, [Record(new, caller or self.caller)])
        return list(outcomes)

    def record(self, destination: str = "d", type_: str = "t", **fields: Any) -> Message:
        """One message, which must not be refused and not be there before."""
        (outcome,) = self.record_all(new_message(destination, type_, **fields))
        assert not good(outcome).replayed
        return good(outcome).message

    def write(self, **columns: Any) -> int:
        """A committed INSERT by a producer; gives the row's id."""
        columns = {"message_key": secrets.token_hex(8), "type": "t", "destination": "d", "payload": "{}"} | columns

        def run(tx: Tx, commands: Sequence[None]) -> Sequence[int]:
            return [tx.conn.execute(insert(outbox).values(**columns)).inserted_primary_key[0] for _ in commands]

        return int(self.database.run(run, [None])[0])

    def adopt(self, most: int = adopt.BATCH) -> int:
        return int(self.database.run(adopt.adopt, [adopt.Batch(most)])[0])

    # -- prepared messages -----------------------------------------------------------------------------------------------

    def prepare(self, seconds: float = 60, url: str | None = "http://127.0.0.1:1/check", **fields: Any) -> Message:
        return self.record(prepare=Prepare(micros(seconds), url), **fields)

    def decide_all(self, *decides: Decide) -> list[Decided | Refusal]:
        return list(self.database.run(decide, list(decides)))

    def decide(self, message_id: bytes, decision: Decision, caller: Caller | None = None) -> Decided:
        return good(self.decide_all(Decide(message_id, decision, caller or self.caller, new_id()))[0])

    def confirm(self, message_id: bytes) -> Decided:
        return self.decide(message_id, Decision.CONFIRMED)

    def abort(self, message_id: bytes) -> Decided:
        return self.decide(message_id, Decision.ABORTED)

    def questions(self, most: int = 50) -> tuple[checks.Question, ...]:
        (given,) = self.database.run(checks.take, [checks.Take(most)])
        return tuple(given)

    def tell(self, message_id: bytes, answer: Answer) -> None:
        self.database.run(checks.tell, [checks.Told(message_id, answer)])

    # -- unknown messages ------------------------------------------------------------------------------------------------

    def doubt(self, destination: str = "d", **fields: Any) -> Message:
        """A message that may have been sent."""
        message = self.record(destination, **fields)
        self.settle(unknown(self.take(destination)))
        return message

    def claim_doubts(self, *names: str, limit: int = 1, **fields: Any) -> tuple[Doubtful, ...]:
        claimed = good(self.database.run(finding.claim, [self.wanted(*names, limit=limit, **fields)])[0])
        grants: tuple[Doubtful, ...] = claimed.grants
        return grants

    def find(self, grant: Doubtful, verdict: Verdict | None, evidence: bytes = b'"seen"', **fields: Any) -> Any:
        """What a reconciler says; a refusal is given as a value."""
        digest = finding_digest(verdict, evidence, fields.get("reference"), None)
        said = Finding(grant.message.id, grant.token, verdict, evidence, digest, self.caller, **fields)
        return self.database.run(finding.find, [said])[0]

    def inquire(self, most: int = 50) -> tuple[Inquiry, ...]:
        (given,) = self.database.run(inquiries.take, [inquiries.Take(most)])
        return tuple(given)

    def inquired(self, inquiry: Inquiry, reading: Reading) -> None:
        self.database.run(inquiries.tell, [inquiries.Told(inquiry, reading)])

    def look(self) -> int:
        return int(self.database.run(inquiries.look, [sweep.Batch()])[0])

    # -- claim -----------------------------------------------------------------------------------------------------------

    def claim_all(self, *claims: Claim) -> list[Claimed | Refusal]:
        """Several requests' claims in one transaction."""
        return list(self.database.run(claim, claims))

    def claim(self, *names: str, limit: int = 1, **fields: Any) -> tuple[Granted, ...]:
        """What one claim is given."""
        (outcome,) = self.claim_all(self.wanted(*names, limit=limit, **fields))
        return good(outcome).grants

    def take(self, *names: str, **fields: Any) -> Granted:
        """One message; there must be one."""
        (granted,) = self.claim(*names, **fields)
        return granted

    def wanted(
        self,
        *names: str,
        limit: int = 1,
        lease: float | None = 60,
        claim_id: str | None = None,
        worker: str = "w",
        types: Sequence[str] = (),
        caller: Caller | None = None,
    ) -> Claim:
        """The command of a claim."""
        asked = None if lease is None else micros(lease)
        return Claim(names or ("d",), tuple(types), worker, limit, asked, caller or self.caller, claim_id)

    # -- settle and renew ------------------------------------------------------------------------------------------------

    def settle_all(self, *items: Settlement, caller: Caller | None = None) -> list[Settled | Refusal]:
        """One request's settlements."""
        (outcomes,) = self.database.run(settle, [Settle(items, caller or self.caller)])
        return list(outcomes)

    def settle(self, item: Settlement, caller: Caller | None = None) -> Settled:
        (outcome,) = self.settle_all(item, caller=caller)
        return good(outcome)

    def beat_all(self, *beats: Beat, caller: Caller | None = None) -> list[Renewed | Refusal]:
        """One request's heartbeats."""
        (outcomes,) = self.database.run(renew, [Renew(beats, caller or self.caller)])
        return list(outcomes)

    def beat(self, grant: Granted, lease: float | None = 60) -> Renewed:
        (outcome,) = self.beat_all(Beat(grant.id, grant.token, None if lease is None else micros(lease)))
        return good(outcome)

    # -- sweeps and operators ----------------------------------------------------------------------------------------------

    def promote(self, most: int = sweep.BATCH) -> int:
        return int(self.database.run(sweep.promote, [sweep.Batch(most)])[0])

    def abandon(self, most: int = sweep.BATCH) -> int:
        return int(self.database.run(sweep.abandon, [sweep.Batch(most)])[0])

    def purge(self, most: int = sweep.BATCH) -> int:
        return int(self.database.run(sweep.purge, [sweep.Batch(most)])[0])

    def give_back(self, *grants: Granted) -> None:
        self.database.run(sweep.give_back, [Claimed(grants)])

    def reconcile_all(self, *verdicts: Reconcile) -> list[Any]:
        return list(self.database.run(control.reconcile, verdicts))

    def reconcile(self, message_id: bytes, verdict: Verdict = Verdict.SENT, **fields: Any) -> Any:
        fields.setdefault("evidence", b'"seen"')
        return good(self.reconcile_all(Reconcile(message_id, self.caller, verdict, **fields))[0])

    def requeue(self, limit: int = 1000, destination: str | None = None, type_: str | None = None) -> control.Changed:
        command = control.Requeue(self.caller, limit, destination, type_)
        (changed,) = self.database.run(control.requeue, [command])
        return changed  # type: ignore[no-any-return]

    def release_stale(self, seconds: float = 0, limit: int = 1000) -> control.Changed:
        (changed,) = self.database.run(control.release_stale, [control.ReleaseStale(self.caller, seconds, limit)])
        return changed  # type: ignore[no-any-return]

    def purge_messages(self, state: State, seconds: float = 0, limit: int = 1000) -> control.Changed:
        (changed,) = self.database.run(control.purge, [control.Purge(self.caller, state, seconds, limit)])
        return changed  # type: ignore[no-any-return]

    # -- what is on disk -------------------------------------------------------------------------------------------------

    def message(self, message_id: bytes) -> Message:
        """The message as it is on disk; it must be there."""

        def read(tx: Tx, _: None) -> Message:
            (row,) = store.select_messages(tx, [message_id])
            return message_of(row, Names(tx))

        found: Message = self.database.read(read, None)
        return found

    def state(self, message_id: bytes) -> State:
        return self.message(message_id).state

    def rows(self, table: Any, *where: Any) -> list[Any]:
        """Rows of a table past every verb."""
        found: list[Any] = self.database.read(lambda tx, _: tx.conn.execute(select(table).where(*where)).all(), None)
        return found

    def events(self, message_id: bytes) -> list[Any]:
        """The stored events of a message, oldest first."""
        return sorted(self.rows(outbox_events, outbox_events.c.message_id == message_id), key=lambda row: bytes(row.id))

    def kinds(self, message_id: bytes) -> list[str]:
        return [event.kind for event in self.events(message_id)]

    def update(self, table: Any, where: Any, **values: Any) -> None:
        """Change rows past every verb."""

        def write(tx: Tx, commands: Sequence[None]) -> Sequence[None]:
            tx.conn.execute(table.update().where(where).values(**values))
            return commands

        self.database.run(write, [None])

    def statements(self, act: Callable[[], Any]) -> list[str]:
        """The statements that this thread's connection sends while `act` runs."""
        seen: list[str] = []

        def note(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
            seen.append(statement)

        with self.database._connections.mine("write").at_work() as connection:
            engine = connection.engine
        event.listen(engine, "before_cursor_execute", note)
        try:
            act()
        finally:
            event.remove(engine, "before_cursor_execute", note)
        return seen

    def repeat(self, op: Callable[..., Any], *commands: Any) -> tuple[list[Any], list[Any]]:
        """Run a unit whose COMMIT was done and whose answer was lost: what the first try gave, and what the second gives."""
        memo: dict[Any, Any] = {}

        def trying(*, repeated: bool) -> Callable[[Tx, Sequence[Any]], Sequence[Any]]:
            def run(tx: Tx, given: Sequence[Any]) -> Sequence[Any]:
                own = Tx(tx.conn, tx.dialect, tx.now, tx.host, tx.shift, repeated, memo)
                outcomes = op(own, given)
                if repeated:
                    tx.after_commit.extend(own.after_commit)
                return list(outcomes)

            return run

        first = self.database.run(trying(repeated=False), commands)
        return list(first), list(self.database.run(trying(repeated=True), commands))


def good(outcome: Any) -> Any:
    """The outcome, which must not be a refusal."""
    if isinstance(outcome, Refusal):
        raise outcome
    return outcome


def reason(outcome: Any) -> str:
    """Why it was refused: the reason of a lost reservation, else the code."""
    assert isinstance(outcome, Refusal), outcome
    return str(outcome.extra.get("reason", outcome.code.name))


def new_message(destination: str = "d", type_: str = "t", **fields: Any) -> NewMessage:
    """A message to record. `key` names it (else it is fresh), `order` is its ordering key, `delay` in seconds is not known
    here: give `available_at`.
    """
    key = fields.pop("key", None) or secrets.token_hex(8)
    told = {
        "schema_version": 1,
        "payload": b"{}",
        "occurred_at": None,
        "available_at": None,
        "ordering_key": fields.pop("order", None),
        "correlation_id": None,
        "target_reference": None,
        "max_attempts": None,
    } | fields
    message_id = told.pop("id", None) or new_id()
    return NewMessage(
        id=message_id,
        message_key=key,
        key_digest=key_digest(key),
        fingerprint=fingerprint(type_=type_, destination=destination, **told),
        flow=(destination, type_),
        **told,
    )


def sent(grant: Granted, reference: str | None = None) -> Settlement:
    return _settlement(grant, Outcome.SENT, reference=reference)


def retried(grant: Granted, category: str = "refused", delay: float | None = None) -> Settlement:
    return _settlement(grant, Outcome.RETRY, category=category, delay=delay)


def rejected(grant: Granted, category: str = "declined") -> Settlement:
    return _settlement(grant, Outcome.REJECTED, category=category)


def unknown(grant: Granted, category: str = "no_answer", reference: str | None = None) -> Settlement:
    return _settlement(grant, Outcome.UNKNOWN, category=category, reference=reference)


def released(grant: Granted, why: ReleaseReason = ReleaseReason.SHUTDOWN, delay: float | None = None) -> Settlement:
    return _settlement(grant, Outcome.RELEASED, reason=why, delay=delay)


def _settlement(grant: Granted, outcome: Outcome, *, delay: float | None = None, **told: Any) -> Settlement:
    digest = settlement_digest(
        outcome.value, delay, *(None if told[name] is None else str(told[name]) for name in sorted(told))
    )
    return Settlement(grant.id, grant.token, outcome, digest, delay=None if delay is None else micros(delay), **told)
