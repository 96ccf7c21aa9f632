"""What operators do with one job: cancel, retry, reconcile. Each is audited in its own transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.db.tx import Tx
from app.errors import STATE_CONFLICT, VERDICT_CONFLICT, VERDICT_REQUIRED, Refusal, not_found
from app.primitives.audit.ops import Entry, record
from app.primitives.jobs.model import (
    WAITING,
    Control,
    Controlled,
    Job,
    Kind,
    Mark,
    State,
    Verdict,
    id_text,
)
from app.primitives.jobs.ops import flows, lines
from app.primitives.jobs.ops.changes import LEFT_BY, Changes
from app.primitives.jobs.ops.records import job_of
from app.primitives.jobs.ops.refusals import out_of_pattern
from app.primitives.jobs.store import control as store

Outcome = Controlled | Refusal
RETRIABLE = (State.DEAD, State.CANCELLED)


def cancel(tx: Tx, commands: Sequence[Control]) -> list[Outcome]:
    """scheduled, available, blocked -> cancelled; a running job is asked to stop, which its worker learns at its next heartbeat.

    Guarantee: whoever cancels again is answered `replayed`. Raises: as values `state_conflict` for a job that ended otherwise,
    `verdict_required` for an unknown one. Race: against a claim, whoever locks the row first; then the job runs and is asked.
    """
    return _Unit(tx).run(commands, _cancel)


def retry(tx: Tx, commands: Sequence[Control]) -> list[Outcome]:
    """dead, cancelled -> available with a fresh budget: its four counters begin at 0. The fence goes on. A job with a
    concurrency key comes to its line; one with a unique key takes it again.

    Guarantee: the same retry again, by the same caller for the same reason and before anything else has happened to the job,
    is answered `replayed`. Raises: as values `state_conflict` for any other job, `verdict_required` for an unknown one,
    `unique_conflict` where another job holds its unique key.
    """
    return _Unit(tx).run(commands, _retry)


def reconcile(tx: Tx, commands: Sequence[Control]) -> list[Outcome]:
    """Unknown -> succeeded, available (with a fresh budget) or dead, by a verdict whose evidence is kept as it was sent.

    Guarantee: of two verdicts the first counts. The same verdict again is answered `replayed`, another one is
    `verdict_conflict`. A job that was retried and is unknown anew takes a new verdict; the very request that gave the old one
    (its id, caller, evidence) is still known as a repeat. Raises: as a value `state_conflict` for a job that was never unknown.
    """
    return _Unit(tx).run(commands, _reconcile)


# -- one job ---------------------------------------------------------------------------------------------------------------

Decide = Callable[["_Unit", Control, Any, Job], Outcome]


class _Unit:
    """Commands about single jobs that share a transaction. The second about one job sees what the first has done."""

    def __init__(self, tx: Tx) -> None:
        self.tx = tx
        self.changes = Changes(tx, {})
        self.audit: list[Entry] = []

    def run(self, commands: Sequence[Control], decide: Decide) -> list[Outcome]:
        ids = sorted({command.id for command in commands})
        if decide is _cancel:
            lines.lock_waiting(self.tx, ids)
        rows = {row.id: row for row in store.lock_jobs(self.tx, ids)}
        self.changes.names = names = flows.names(self.tx, {row.flow_id for row in rows.values()})
        told = {row.job_id: row for row in store.select_references(self.tx, list(rows))} if rows else {}
        jobs: dict[bytes, Job] = {}
        for key, row in rows.items():
            more = told[key]
            jobs[key] = replace(
                job_of(row, names), correlation_id=more.correlation_id, parent_operation_id=more.parent_operation_id
            )
        if decide is _retry:
            self.changes.expect(row for row in rows.values() if row.state in RETRIABLE)
        outcomes: list[Outcome] = []
        for command in commands:
            outcome = self._one(command, rows, jobs, decide)
            if isinstance(outcome, Controlled):
                jobs[command.id] = outcome.job
            outcomes.append(outcome)
        self.changes.write()
        record(self.tx, self.audit)
        return [self._as_freed(outcome) for outcome in outcomes]

    def _as_freed(self, outcome: Outcome) -> Outcome:
        """A job that came to its line and at once to a slot."""
        if (
            isinstance(outcome, Controlled)
            and outcome.job.state is State.BLOCKED
            and outcome.job.id in self.changes.freed
        ):
            return replace(outcome, job=replace(outcome.job, state=State.AVAILABLE))
        return outcome

    def _one(self, command: Control, rows: dict[bytes, Any], jobs: dict[bytes, Job], decide: Decide) -> Outcome:
        job = jobs.get(command.id)
        if job is None:
            return not_found("job")
        if not command.caller.principal.allows(job.flow[0]):
            return out_of_pattern()
        return decide(self, command, rows[command.id], job)

    def note(self, command: Control, job: Job, verb: str, **details: Any) -> None:
        """Audit it."""
        self.audit.append(
            Entry(
                command.caller.principal,
                f"jobs.{verb}",
                "job",
                id_text(job.id),
                command.reason or None,
                command.caller.request_id,
                {"queue": job.flow[0], "type": job.flow[1], "state": job.state.text, **details},
            )
        )

    def again(self, job: Job) -> Controlled:
        """The answer where it was done before: by an earlier call, or by an earlier try of this very unit."""
        ours = self.tx.memo.get(("event", job.id)) if self.tx.repeated else None
        newest = store.select_newest_event(self.tx, job.id) if ours is not None else None
        return Controlled(job, replayed=newest is None or newest["id"] != ours)

    def ended(self, job: Job, state: State, command: Control) -> Job:
        return replace(
            job,
            state=state,
            ended_at=self.tx.now,
            due_at=self.changes.purges[job.id],
            ended_request_id=command.caller.request_id,
        )

    def fresh(self, job: Job) -> Job:
        return replace(
            job,
            state=State.BLOCKED if job.marks & Mark.CONCURRENCY else State.AVAILABLE,
            available_at=self.tx.now,
            due_at=None,
            attempt=0,
            lease_losses=0,
            releases=0,
            throttles=0,
            ended_at=None,
            ended_request_id=None,
            cancel_requested_at=None,
        )


def _cancel(unit: _Unit, command: Control, row: Any, job: Job) -> Outcome:
    if job.state is State.CANCELLED or (job.state is State.RUNNING and job.cancel_requested_at is not None):
        return unit.again(job)
    if job.state is State.UNKNOWN:
        return _verdict_required()
    if job.state not in (*WAITING, State.RUNNING):
        return _conflict(job, "It has ended; only waiting and running jobs can be cancelled.")
    unit.changes.cancel(row, command.caller, command.reason)
    unit.note(command, job, "cancel")
    if job.state is State.RUNNING:
        return Controlled(replace(job, cancel_requested_at=unit.tx.now))
    return Controlled(unit.ended(job, State.CANCELLED, command))


def _retry(unit: _Unit, command: Control, row: Any, job: Job) -> Outcome:
    if job.state is State.UNKNOWN:
        return _verdict_required()
    if job.state not in RETRIABLE:
        if job.state in (State.AVAILABLE, State.BLOCKED) and _is_retried_by(unit, command, job):
            return unit.again(job)
        return _conflict(job, "Only dead and cancelled jobs can be retried.")
    if (taken := unit.changes.retry(row, command.caller, command.reason)) is not None:
        return taken
    unit.note(command, job, "retry", attempt=job.attempt, category=job.category)
    return Controlled(unit.fresh(job))


def _is_retried_by(unit: _Unit, command: Control, job: Job) -> bool:
    """Whether the last thing that happened to the job is this very retry."""
    if any(event["job_id"] == job.id for event in unit.changes.events):
        event = next(event for event in unit.changes.events if event["job_id"] == job.id)
        return bool(event["actor"] == command.caller.principal.key_id and event["message"] == command.reason)
    newest = store.select_newest_event(unit.tx, job.id)
    if newest is None or newest["kind"] != Kind.RETRIED or newest["fence"] != job.fence:
        return False
    return bool(newest["actor"] == command.caller.principal.key_id and newest["message"] == command.reason)


def _reconcile(unit: _Unit, command: Control, row: Any, job: Job) -> Outcome:
    verdict = command.verdict
    assert verdict is not None, "the schema demands one"
    given = _verdict_given(unit, job)
    if job.state is State.UNKNOWN and (given is None or not _same_request(given, command)):
        unit.changes.reconcile(row, command, verdict)
        unit.note(command, job, "reconcile", verdict=verdict.value, reference=command.reference)
        if verdict is Verdict.RETRY:
            return Controlled(unit.fresh(job))
        return Controlled(unit.ended(job, LEFT_BY[verdict], command))
    if given is None:
        return _conflict(job, "Only an unknown job takes a verdict.")
    if given["category"] != verdict.value:
        return Refusal(
            VERDICT_CONFLICT, f"The verdict `{given['category']}` stands.", extra={"verdict": given["category"]}
        )
    return unit.again(job)


def _verdict_given(unit: _Unit, job: Job) -> Mapping[str, Any] | None:
    """The newest verdict on this job: of this unit, or stored."""
    for event in unit.changes.events:
        if event["job_id"] == job.id:
            return event
    return store.select_newest_event(unit.tx, job.id, Kind.RECONCILED)


def _same_request(given: Mapping[str, Any], command: Control) -> bool:
    assert command.verdict is not None, "the schema demands one"
    wanted = {
        "category": command.verdict.value,
        "actor": command.caller.principal.key_id,
        "request_id": command.caller.request_id,
        "reference": command.reference,
        "detail": command.evidence,
    }
    return all(given[name] == value for name, value in wanted.items())


def _conflict(job: Job, why: str) -> Refusal:
    return Refusal(STATE_CONFLICT, f"The job is {job.state.text}. {why}", extra={"state": job.state.text})


def _verdict_required() -> Refusal:
    return Refusal(
        VERDICT_REQUIRED,
        "What this job did is unknown: find out, then call `reconcile`.",
        extra={"state": State.UNKNOWN.text},
    )
