"""Terminal handlers: a death enqueues the job, or records the message, that its type's contract names, in its transaction.

What is owed, nothing may refuse: a handler's job is not judged by contract policies, payload schemas or the depth limit of its
queue, and a settlement or a sweep never fails because of it. It takes its defaults from its own type's terms. It carries
`Mark.TERMINAL_HANDLER`, and the death of a job that does is not handled, whatever its own contract says: no loop.
Messages are recorded by whoever keeps the outbox, who has told this process's memory of jobs how (`Here.record_owed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from app.access import Principal
from app.clock import to_text
from app.db.tx import Tx
from app.primitives.jobs.model import Caller, Enqueue, Flow, Kind, Mark, NewJob, State, id_text, new_id
from app.primitives.jobs.model.terms import Handler, Pair, Terms
from app.primitives.jobs.ops import flows, moves, terms
from app.primitives.jobs.ops.enqueue import insert
from app.primitives.jobs.store import held
from app.primitives.jobs.store import terminal as store

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Death:
    """A job that this transaction has left dead. `row`: its hot row before; `change`: what was written over it.

    `error`: the failure event that it died of, where a worker reported one just now.
    """

    row: Any
    flow: Flow
    change: Mapping[str, Any]
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class OwedMessage:
    """A message that a death records. The job's id is what it is about, and part of its key."""

    id: bytes
    job_id: bytes
    destination: str
    type: str
    payload: bytes
    caller: Caller
    correlation_id: str | None


def handle(tx: Tx, deaths: Sequence[Death]) -> None:
    """Enqueue or record what these deaths owe, and tell of each in an event `handled` of the dead job.

    Call it after the deaths were written and their rows counted, with those alone that were. Guarantee: once for each death,
    as the row of the death decides: who runs again after a COMMIT without an answer finds the job dead already. A job that is
    retried and dies again is handled again. It may never have started. Cost: one statement for each table, however many.
    """
    mortal = [death for death in deaths if not death.row.marks & Mark.TERMINAL_HANDLER]
    promised = terms.read(tx, {death.flow[1:] for death in mortal})
    owed = [(death, handler) for death in mortal if (handler := _handler(promised, death.flow[1:])) is not None]
    if owed:
        _write(tx, owed)


def of_moves(moved: Sequence[moves.Move]) -> list[Death]:
    """Those of these moves that are deaths."""
    return [
        Death(move.row, move.flow, move.change, next((one for one in move.events if one["kind"] == Kind.FAILED), None))
        for move in moved
        if move.state is State.DEAD
    ]


def as_it_is(row: Any) -> dict[str, Any]:
    """The `change` of a death that leaves counters and category as they were: a verdict's."""
    return {
        f"b_{name}": getattr(row, name) for name in ("category", "attempt", "lease_losses", "releases", "throttles")
    }


def _handler(promised: Mapping[Pair, Terms], pair: Pair) -> Handler | None:
    return promised[pair].handler if pair in promised else None


def _write(tx: Tx, owed: list[tuple[Death, Handler]]) -> None:
    ids = [death.row.id for death, _ in owed]
    origins = {row.job_id: row for row in store.select_origins(tx, ids)}
    quiet = [death.row.id for death, _ in owed if death.error is None]
    errors = store.select_last_errors(tx, quiet) if quiet else {}
    jobs: list[Enqueue] = []
    messages: list[OwedMessage] = []
    events: list[dict[str, Any]] = []
    for death, handler in owed:
        origin = origins[death.row.id]
        payload = _payload(tx, death, origin, death.error or errors.get(death.row.id))
        identity = tx.memo.setdefault(("handler", death.row.id), new_id())
        if handler.destination is None:
            jobs.append(_job(identity, death, handler, payload, origin))
        else:
            messages.append(_message(identity, death, handler.destination, handler.type, payload, origin))
        events.append(_handled(tx, death, identity, job=handler.destination is None))
    if jobs:
        insert(tx, jobs)
    if messages:
        flows.here(tx).record_owed(tx, messages)
    held.insert_events(tx, events)


def _job(identity: bytes, death: Death, handler: Handler, payload: bytes, origin: Any) -> Enqueue:
    new = NewJob(
        id=identity,
        flow=(handler.queue or "", handler.type, handler.schema_version),
        payload=payload,
        correlation_id=origin.correlation_id,
        parent_operation_id=id_text(death.row.id),
        handles_death=True,
    )
    return Enqueue((new,), _caller(origin))


def _message(identity: bytes, death: Death, destination: str, type_: str, payload: bytes, origin: Any) -> OwedMessage:
    job_id = bytes(death.row.id)
    return OwedMessage(identity, job_id, destination, type_, payload, _caller(origin), origin.correlation_id)


def _caller(origin: Any) -> Caller:
    """Whoever enqueued the job that died, in that call's trace."""
    maker = Principal(origin.created_by, origin.created_by, frozenset())
    return Caller(maker, origin.request_id, origin.traceparent, origin.tracestate)


def _payload(tx: Tx, death: Death, origin: Any, error: Mapping[str, Any] | None) -> bytes:
    """What the handler gets. The payload of the job that died is in it as far as the two fit into one."""
    told = _told(tx, death, origin, error)
    whole = _encode({**told, "payload": msgspec.Raw(origin.payload), "payload_omitted": False})
    if len(whole) <= tx.host.settings.max_payload_bytes:
        return whole
    return _encode({**told, "payload": None, "payload_omitted": True})


def _told(tx: Tx, death: Death, origin: Any, error: Mapping[str, Any] | None) -> dict[str, Any]:
    queue, type_, version = death.flow
    change = death.change
    return {
        "job": {"id": id_text(death.row.id), "queue": queue, "type": type_, "schema_version": version},
        "category": change["b_category"],
        "counts": {
            "attempts": change["b_attempt"],
            "lease_losses": change["b_lease_losses"],
            "releases": change["b_releases"],
            "throttles": change["b_throttles"],
        },
        "last_error": None
        if error is None
        else {
            "category": error["category"],
            "message": error["message"],
            "reference": error["reference"],
            "at": to_text(error["at"]),
        },
        "died_at": to_text(tx.now),
        "correlation_id": origin.correlation_id,
        "parent_operation_id": origin.parent_operation_id,
    }


def _handled(tx: Tx, death: Death, identity: bytes, *, job: bool) -> dict[str, Any]:
    # no attempt's own: it must not be taken for how a reservation ended
    told = {"attempt": None, "fence": None, "claimed_at": None, "worker": None, "grant_digest": None}
    named = {"handler_job_id" if job else "handler_message_id": id_text(identity)}
    return moves.event(tx, death.row, Kind.HANDLED, **told, detail=_encode(named))
