"""Terminal handlers: a death enqueues the job that its type's contract names for it, in the transaction of the death.

Such a job is owed, so nothing may refuse it: it is not judged by contract policies, payload schemas or the depth limit of
its queue, and a settlement or a sweep never fails because of it. It takes its defaults from its own type's terms. It carries
`Mark.TERMINAL_HANDLER`, and the death of a job that does is not handled, whatever its own contract says: no loop.
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
from app.primitives.jobs.model.terms import Pair, Terms
from app.primitives.jobs.ops import moves, terms
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


def handle(tx: Tx, deaths: Sequence[Death]) -> None:
    """Enqueue the handlers of these deaths, and tell of each in an event `handled` of the dead job.

    Call it after the deaths were written and their rows counted, with those alone that were. Guarantee: once for each death,
    as the row of the death decides: who runs again after a COMMIT without an answer finds the job dead already. A job that is
    retried and dies again is handled again. It may never have started. Cost: one statement for each table, however many.
    """
    mortal = [death for death in deaths if not death.row.marks & Mark.TERMINAL_HANDLER]
    promised = terms.read(tx, {death.flow[1:] for death in mortal})
    owed = [(death, flow) for death in mortal if (flow := _handler(promised, death.flow[1:])) is not None]
    if owed:
        _enqueue(tx, owed)


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


def _handler(promised: Mapping[Pair, Terms], pair: Pair) -> Flow | None:
    handler = promised[pair].handler if pair in promised else None
    if handler is None or handler.queue is None:
        return None
    return handler.queue, handler.type, handler.schema_version


def _enqueue(tx: Tx, owed: list[tuple[Death, Flow]]) -> None:
    ids = [death.row.id for death, _ in owed]
    origins = {row.job_id: row for row in store.select_origins(tx, ids)}
    quiet = [death.row.id for death, _ in owed if death.error is None]
    errors = store.select_last_errors(tx, quiet) if quiet else {}
    commands: list[Enqueue] = []
    events: list[dict[str, Any]] = []
    for death, flow in owed:
        origin = origins[death.row.id]
        new = NewJob(
            id=tx.memo.setdefault(("handler", death.row.id), new_id()),
            flow=flow,
            payload=_payload(tx, death, origin, death.error or errors.get(death.row.id)),
            correlation_id=origin.correlation_id,
            parent_operation_id=id_text(death.row.id),
            handles_death=True,
        )
        commands.append(Enqueue((new,), _caller(origin)))
        events.append(_handled(tx, death, new))
    insert(tx, commands)
    held.insert_events(tx, events)


def _caller(origin: Any) -> Caller:
    """Whoever enqueued the job that died, in that call's trace."""
    maker = Principal(origin.created_by, origin.created_by, frozenset())
    return Caller(maker, origin.request_id, origin.traceparent, origin.tracestate)


def _payload(tx: Tx, death: Death, origin: Any, error: Mapping[str, Any] | None) -> bytes:
    queue, type_, version = death.flow
    change = death.change
    return _encode(
        {
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
    )


def _handled(tx: Tx, death: Death, new: NewJob) -> dict[str, Any]:
    # no attempt's own: it must not be taken for how a reservation ended
    told = {"attempt": None, "fence": None, "claimed_at": None, "worker": None, "grant_digest": None}
    return moves.event(tx, death.row, Kind.HANDLED, **told, detail=_encode({"handler_job_id": id_text(new.id)}))
