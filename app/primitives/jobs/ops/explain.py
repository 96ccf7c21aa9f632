"""Explain: why a job is not running now, with the evidence for each reason. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from app.access import Principal
from app.clock import micros, to_text
from app.db.tx import Tx
from app.errors import Refusal, not_found
from app.primitives.jobs.model import ENDED, Claim, Job, Kind, State
from app.primitives.jobs.ops import flows, workers
from app.primitives.jobs.ops.records import job_of
from app.primitives.jobs.ops.refusals import out_of_pattern
from app.primitives.jobs.ops.told import text_of
from app.primitives.jobs.store import control, lines, lists

MOST_AHEAD = 1000
MOST_HOLDERS = 10


@dataclass(frozen=True, slots=True)
class Explain:
    """Which job. `waiting`: claims that wait at this process's desk, who count as claiming now."""

    id: bytes
    principal: Principal
    waiting: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """A job that holds a slot; `expires_at` is the end of its lease, None while it is available."""

    id: bytes
    state: State
    expires_at: int | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a reason rests on. Moments in microseconds; None where it does not belong to the reason."""

    at: int | None = None
    since: int | None = None
    expires_at: int | None = None
    attempt: int | None = None
    worker: str | None = None
    why: str | None = None
    category: str | None = None
    message: str | None = None
    reason: str | None = None
    ahead: int | None = None
    workers: tuple[str, ...] = ()
    key: str | None = None
    limit: int | None = None
    holders: tuple[SlotHolder, ...] = ()


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason. `code` is what programs switch on; `detail` is one sentence for a person."""

    code: str
    detail: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Explanation:
    """`reasons`: never empty, what holds the job most firmly first."""

    job: Job
    reasons: tuple[Reason, ...]


def explain(tx: Tx, command: Explain) -> Explanation | Refusal:
    """Every reason why this job does not run now. A job that only waits for the next claim is `ready`.

    Raises: as values `not_found`, and `forbidden` for a queue outside the key's patterns.
    """
    row = lists.select_job(tx, command.id)
    told = None if row is None else lists.select_told(tx, command.id, payload=False)
    if told is None:
        return not_found("job")
    names = flows.names(tx, [row.flow_id])
    if not command.principal.allows(names[row.flow_id][0]):
        return out_of_pattern()
    job = replace(job_of(row, names), correlation_id=told.correlation_id, parent_operation_id=told.parent_operation_id)
    if job.state in ENDED:
        reasons = [_ended(job)]
    elif job.state is State.UNKNOWN:
        reasons = [_unknown(tx, job)]
    elif job.state is State.RUNNING:
        reasons = [*_running(tx, job)]
    else:
        reasons = [*_waiting(tx, row, job, command)]
    return Explanation(job, tuple(reasons))


def _ended(job: Job) -> Reason:
    evidence = Evidence(at=job.ended_at, attempt=job.attempt, worker=job.worker, category=job.category)
    return Reason("ended", f"It has ended: it is {job.state.text}.", evidence)


def _unknown(tx: Tx, job: Job) -> Reason:
    event = control.select_newest_event(tx, job.id)
    evidence = Evidence(
        since=None if event is None else event["at"],
        attempt=job.attempt,
        worker=job.worker,
        category=job.category,
        message=None if event is None else event["message"],
    )
    return Reason(
        "verdict_required", "What its last attempt did is unknown; it waits for a verdict (`reconcile`).", evidence
    )


def _running(tx: Tx, job: Job) -> Iterator[Reason]:
    if job.cancel_requested_at is not None:
        event = control.select_newest_event(tx, job.id, Kind.CANCEL_REQUESTED)
        reason = None if event is None else event["message"]
        yield Reason(
            "cancel_requested",
            "It was asked to stop; its worker learns that at its next heartbeat.",
            Evidence(at=job.cancel_requested_at, reason=reason),
        )
    yield Reason(
        "running",
        f"It is running, held until {to_text(job.due_at or 0)}.",
        Evidence(since=job.claimed_at, expires_at=job.due_at, attempt=job.attempt, worker=job.worker),
    )


def _waiting(tx: Tx, row: Any, job: Job, command: Explain) -> Iterator[Reason]:
    held = [*_paused(tx, job), *_workers(tx, job, command.waiting)]
    if job.state is State.BLOCKED:
        yield from _blocked(tx, job, command.principal)
        yield from held
        return
    if job.state is State.SCHEDULED:
        yield _due_later(tx, job)
        yield from held
        return
    yield from held
    ahead = lists.count_ahead(tx, row, MOST_AHEAD)
    if ahead:
        many = f"{MOST_AHEAD} or more" if ahead == MOST_AHEAD else str(ahead)
        yield Reason(
            "behind_others", f"Others of its queue, type and version come first: {many}.", Evidence(ahead=ahead)
        )
    elif not held:
        yield Reason(
            "ready", "Nothing holds it: the next claim that may take it gets it.", Evidence(since=job.available_at)
        )


def _blocked(tx: Tx, job: Job, principal: Principal) -> Iterator[Reason]:
    for slot in lines.select_slots(tx, [job.id]):
        for key in lines.select_limits(tx, [slot.digest]):
            rows = lines.select_slot_holders(tx, slot.digest, MOST_HOLDERS)
            names = flows.names(tx, {row.flow_id for row in rows})
            holders = tuple(
                SlotHolder(row.id, State(row.state), row.due_at if row.state == State.RUNNING else None)
                for row in rows
                if principal.allows(names[row.flow_id][0])
            )
            ahead = lines.count_ahead(tx, slot, MOST_AHEAD)
            yield Reason(
                "key_held",
                f"Its concurrency key has {key.most} slots, all held, and {ahead} jobs wait before it. It comes to a slot when "
                "holders end, or wait for a retry; cancel one, or enqueue with a higher limit.",
                Evidence(key=text_of(key.name), limit=key.most, ahead=ahead, holders=holders),
            )


def _due_later(tx: Tx, job: Job) -> Reason:
    event = control.select_newest_event(tx, job.id)
    why = _PAUSED_BY.get("" if event is None else event["kind"], "delayed")
    evidence = Evidence(at=job.available_at, attempt=job.attempt, why=why)
    if event is not None and why != "delayed":
        evidence = replace(evidence, category=event["category"], message=event["message"])
        failed = control.select_newest_event(tx, job.id, Kind.FAILED) if why == "lease_lost" else None
        if failed is not None:
            evidence = replace(evidence, category=failed["category"], message=failed["message"])
    return Reason("due_later", f"It is not due before {to_text(job.available_at)}.", evidence)


_PAUSED_BY: dict[str, str] = {Kind.FAILED: "backoff", Kind.ABANDONED: "lease_lost", Kind.RELEASED: "released"}


def _paused(tx: Tx, job: Job) -> Iterator[Reason]:
    queue = lists.select_queue(tx, job.flow[0])
    if queue is not None and queue.paused_at is not None:
        yield Reason(
            "queue_paused",
            "Its queue is paused.",
            Evidence(since=queue.paused_at, reason=queue.paused_reason),
        )


def _workers(tx: Tx, job: Job, waiting: tuple[Claim, ...]) -> Iterator[Reason]:
    queue, type_, version = job.flow
    window = micros(tx.host.settings.silent_after_seconds)
    found = workers.seen(tx, waiting, queue)
    claiming = {
        worker: one for (worker, _), one in found.items() if workers.lately(one.last_claimed_at, tx.now, window)
    }
    if any(workers.handles(one, type_, version) for one in claiming.values()):
        return
    if claiming:
        names = tuple(sorted(claiming))[:10]
        yield Reason(
            "no_handler",
            "Workers claim from its queue, but none of them names its type and version.",
            Evidence(workers=names, since=max(one.last_claimed_at or 0 for one in claiming.values())),
        )
    else:
        last = max((one.last_claimed_at for one in found.values() if one.last_claimed_at is not None), default=None)
        yield Reason("no_worker_seen", "No worker has claimed from its queue lately.", Evidence(since=last))
