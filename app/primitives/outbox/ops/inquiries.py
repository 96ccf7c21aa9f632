"""Inquiries: for destinations with `reconcile: http` or `job` the service itself finds out about unknown messages.

Over HTTP the call is made by `delivery/inquiries.py` with no transaction open: `take` gives out what is to be asked, under a
lease, and `tell` writes down what came of it. A job is enqueued in the transaction that takes the doubt; how it ended is
looked up until it has. Whatever was decided meanwhile stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.access import Caller, Principal
from app.clock import micros
from app.db.tx import Tx
from app.ids import id_text, new_id
from app.primitives.jobs.ops import made
from app.primitives.outbox.model.destinations import Destination, ReconcileMode
from app.primitives.outbox.model.finding import Inquiry, Reading, body_of, read_result
from app.primitives.outbox.model.records import Reconcile
from app.primitives.outbox.model.states import Doubt, Kind, State
from app.primitives.outbox.ops import control, destinations, finding, flows, moves
from app.primitives.outbox.ops.records import message_of, told
from app.primitives.outbox.ops.sweep import Batch
from app.primitives.outbox.store import doubts as store
from app.primitives.outbox.store import flows as flow_store
from app.primitives.outbox.store import held, work

BY_SERVICE = Caller(Principal("reconciler", "reconciler", frozenset()), "reconciler")
BEYOND_CALL = micros(30)  # for what the call takes and its writing down, also where the database is slow
FIRST_LOOK, LONGEST_LOOK = micros(1), micros(60)  # pauses between looks at a job that finds out


@dataclass(frozen=True, slots=True)
class Take:
    """At most so many questions."""

    most: int


@dataclass(frozen=True, slots=True)
class Told:
    """What came of one inquiry."""

    inquiry: Inquiry
    reading: Reading


def any_open(tx: Tx, _command: None) -> bool:
    """Whether there is any unknown message: where there is none, which is the rule, nothing else is looked at."""
    return store.any_doubts(tx)


def take(tx: Tx, commands: Sequence[Take]) -> list[tuple[Inquiry, ...]]:
    """open -> held for unknown messages of destinations that are asked over HTTP. Being taken costs nothing of the budget."""
    lease = micros(tx.host.settings.outbox_ask_timeout_seconds) + BEYOND_CALL
    taken = _take(tx, ReconcileMode.HTTP, commands[0].most, {"due_at": tx.now + lease, "lease_micros": lease})
    names = sorted({one.name for one in taken.values()})
    sealed = {row.name: row.sealed for row in flow_store.select_destinations(tx, names)} if names else {}
    given = tuple(
        Inquiry(message_id, doubt.fence, one.name, one.reconcile.url or "", body, sealed.get(one.name))
        for message_id, doubt, one, body in _bodies(tx, taken)
    )
    return [given, *(() for _ in commands[1:])]


def enqueue(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """open -> held for unknown messages of destinations that a job finds out for, with that job in the same transaction."""
    taken = _take(
        tx, ReconcileMode.JOB, commands[0].most, {"due_at": tx.now + FIRST_LOOK, "lease_micros": None}, spent=1
    )
    jobs, rows = [], []
    for message_id, _, destination, body in _bodies(tx, taken):
        job_id = tx.memo.setdefault(("job", message_id), new_id())
        by = destination.reconcile
        flow = (by.queue or "", by.type or "", by.schema_version or 1)
        jobs.append(made.Making(job_id, flow, body, correlation_id=id_text(message_id)))
        rows.append({"b_message_id": message_id, "b_job_id": job_id})
    if jobs:
        made.make(tx, jobs, BY_SERVICE)
        store.update_jobs(tx, rows)
    return [len(jobs), *(0 for _ in commands[1:])]


def _take(
    tx: Tx, mode: ReconcileMode, most: int, held_by: dict[str, Any], *, spent: int = 0
) -> dict[bytes, Destination]:
    by_flow = _flows_of(tx, mode)
    taken: dict[bytes, Destination] = {}
    for flow_id in store.select_open_flows(tx, list(by_flow)) if by_flow else ():
        ids = [bytes(row.message_id) for row in store.lock_open(tx, flow_id, most - len(taken))]
        if ids:
            nobody = {"worker": None, "grant_digest": None, "job_id": None}
            store.update_taken(tx, ids, held_by | nobody, spent=spent)
            taken |= dict.fromkeys(ids, by_flow[flow_id])
        if len(taken) >= most:
            break
    return taken


def _flows_of(tx: Tx, mode: ReconcileMode) -> dict[int, Destination]:
    known = {one.name: one for one in destinations.every(tx) if one.reconcile.mode is mode}
    rows = flow_store.select_flows_of(tx, sorted(known)) if known else ()
    return {row.id: known[row.destination] for row in rows}


def _bodies(tx: Tx, taken: dict[bytes, Destination]) -> Iterator[tuple[bytes, Any, Destination, bytes]]:
    ids, names = sorted(taken), flows.Names(tx)
    rows = {bytes(row.id): row for row in work.select_messages(tx, ids)} if ids else {}
    contents = {bytes(row.message_id): row for row in work.select_contents(tx, ids)} if ids else {}
    for doubt in store.select_doubts(tx, ids) if ids else ():
        one = bytes(doubt.message_id)
        message = told(message_of(rows[one], names), contents[one])
        asked = doubt.attempt + (taken[one].reconcile.mode is ReconcileMode.HTTP)
        yield one, doubt, taken[one], body_of(message, bytes(contents[one].payload), doubt.opened_at, asked)


def tell(tx: Tx, commands: Sequence[Told]) -> list[None]:
    """Write down what was answered: a verdict decides, anything else puts the doubt off. What reached nobody costs nothing of
    the budget, for as long as that goes on. Race: a decision that was quicker stands; the answer is then nothing.
    """
    by_id = {one.inquiry.id: one for one in commands}
    rows = {bytes(row.id): row for row in held.lock_messages(tx, sorted(by_id))}
    for doubt in store.lock_doubts(tx, sorted(rows)) if rows else ():
        told_ = by_id[bytes(doubt.message_id)]
        if doubt.state == Doubt.HELD and doubt.fence == told_.inquiry.fence and doubt.job_id is None:
            row = rows[bytes(doubt.message_id)]
            _apply(tx, row, doubt, told_.reading, doubt.attempt + told_.reading.reached)
    return [None for _ in commands]


def _apply(tx: Tx, row: Any, doubt: Any, reading: Reading, attempt: int) -> None:
    if reading.verdict is not None:
        verdict = Reconcile(bytes(row.id), BY_SERVICE, reading.verdict, reading.evidence, reading.reference)
        control.decide(tx, row, verdict)
        return
    if reading.reached:  # what reached nobody would fill the history
        held.insert_events(tx, [_undecided(tx, row, reading)])
    gave_up = not reading.reached and tx.now > doubt.opened_at + micros(tx.host.settings.outbox_ask_give_up_seconds)
    name = flows.Names(tx)[row.flow_id][0]
    known = destinations.read(tx, [name]).get(name, Destination(name))
    finding.put_off(tx, row, doubt, finding.budget_of(tx, known) if gave_up else attempt, failures=doubt.fence)


def _undecided(tx: Tx, row: Any, reading: Reading) -> dict[str, Any]:
    return moves.event(
        tx, row, Kind.UNDECIDED, id=tx.memo.setdefault(("event", row.id), new_id()), worker=None, claimed_at=None,
        actor=BY_SERVICE.principal.key_id, detail=reading.evidence, grant_digest=None,
    )  # fmt: skip


# -- in time ---------------------------------------------------------------------------------------------------------------


def look(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """Doubts whose pause is over are open again; of those that are held, reservations that have ended are taken back, and jobs
    that find out are looked at. A reservation that was lost has cost one of the budget.
    """
    most = commands[0].most
    later, lapsed = store.select_due(tx, Doubt.LATER, most), store.select_due(tx, Doubt.HELD, most)
    rows = (
        {bytes(row.id): row for row in held.lock_free_messages(tx, sorted({*later, *lapsed}))}
        if later or lapsed
        else {}
    )
    found = store.lock_doubts(tx, sorted(rows)) if rows else ()
    due = [doubt for doubt in found if doubt.due_at is not None and doubt.due_at <= tx.now]
    jobs = [bytes(one.job_id) for one in due if one.state == Doubt.HELD and one.job_id is not None]
    ends = made.ended(tx, jobs) if jobs else {}
    opened = []
    for doubt in due:
        row = rows[bytes(doubt.message_id)]
        if row.state != State.UNKNOWN:
            continue
        if doubt.state == Doubt.HELD and doubt.job_id is not None:
            _look_at_job(tx, row, doubt, ends.get(bytes(doubt.job_id)))
        elif doubt.state == Doubt.LATER or doubt.attempt < _budget(tx, row):
            opened.append(row)
            _write(tx, doubt, Doubt.OPEN, None)
        else:
            _write(tx, doubt, Doubt.OPERATOR, None)
    if opened:
        memory, names = flows.here(tx), flows.Names(tx)
        woken = {names[row.flow_id]: 1 for row in opened}
        tx.on_commit(lambda: memory.doubted(woken))
    return [len(due), *(0 for _ in commands[1:])]


def _look_at_job(tx: Tx, row: Any, doubt: Any, end: made.Ended | None) -> None:
    if end is not None and not end.over:
        age = max(0, tx.now - doubt.opened_at)
        _write(tx, doubt, Doubt.HELD, tx.now + min(LONGEST_LOOK, FIRST_LOOK + age // 20))
        return
    where = {"job_id": id_text(bytes(doubt.job_id)), "job_state": "gone" if end is None else end.state}
    result = None if end is None else end.result
    _apply(tx, row, doubt, read_result(result, where), doubt.attempt)


def _write(tx: Tx, doubt: Any, state: Doubt, due_at: int | None) -> None:
    change = {"b_message_id": doubt.message_id, "b_state": int(state), "b_due_at": due_at, "b_attempt": doubt.attempt}
    store.update_state(tx, [change])


def _budget(tx: Tx, row: Any) -> int:
    name = flows.Names(tx)[row.flow_id][0]
    return finding.budget_of(tx, destinations.read(tx, [name]).get(name, Destination(name)))
