"""Enqueue: jobs come to be."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.clock import MICROS
from app.db.tx import Tx
from app.errors import IDEMPOTENCY_CONFLICT, QUEUE_FULL, Refusal
from app.primitives.jobs.model import Enqueue, Enqueued, Flow, Job, NewJob, State
from app.primitives.jobs.model.terms import UNLIMITED
from app.primitives.jobs.ops import flows, terms
from app.primitives.jobs.ops.admission import Admission
from app.primitives.jobs.store import work as store

CORRELATION, PARENT = 1, 2


def enqueue(tx: Tx, commands: Sequence[Enqueue]) -> list[list[Enqueued | Refusal]]:
    """Insert the jobs of all commands in one go.

    Guarantee: a job whose `Enqueued` was answered is on disk. A key that is there gives its job (`replayed`) if the content
    is the same, else `idempotency_conflict`. Race: of two enqueues with one key, one inserts; the other's unit fails as a
    duplicate, runs again and replays. After a COMMIT without an answer the ids themselves are looked up. Raises: as values
    also `contract_required`, `contract_violated`, `payload_invalid` and `queue_full`, for new jobs alone.
    """
    work = _Work(tx, {job.flow for command in commands for job in command.jobs})
    if tx.repeated:
        work.recall([job.id for command in commands for job in command.jobs])
    work.look_up_keys([job.key_digest for command in commands for job in command.jobs if job.key_digest])
    work.measure_depths({job.flow[0] for command in commands for job in command.jobs})
    outcomes = [[work.decide(command, job) for job in command.jobs] for command in commands]
    work.write()
    return outcomes


class _Work:
    """One transaction's worth of enqueueing: decides job by job, writes table by table."""

    def __init__(self, tx: Tx, wanted: set[Flow]) -> None:
        self.tx = tx
        self.flow_ids: dict[Flow, int] = {}
        self.admission = Admission.of(tx, wanted)
        self.starts: dict[bytes, terms.Start] = {}
        self.there: dict[bytes, Job] = {}
        self.keys: dict[bytes, tuple[bytes, Job]] = {}
        self.room: dict[str, int] = {}
        self.new: list[tuple[Enqueue, NewJob, Job]] = []

    def recall(self, ids: list[bytes]) -> None:
        self.there = {row.id: job_of(row, self._names()) for row in store.select_jobs(self.tx, ids)}

    def look_up_keys(self, digests: list[bytes]) -> None:
        if not digests:
            return
        rows = store.select_keys(self.tx, sorted(set(digests)))
        jobs = {row.id: job_of(row, self._names()) for row in store.select_jobs(self.tx, [row.job_id for row in rows])}
        self.keys = {row.digest: (row.fingerprint, jobs[row.job_id]) for row in rows if row.job_id in jobs}

    def measure_depths(self, queues: set[str]) -> None:
        memory = flows.here(self.tx)
        limited = sorted(queue for queue in queues if memory.max_depth(queue) is not None)
        # the row's lock makes the count exact among replicas; queues without a limit pay nothing
        for queue, limit in store.lock_limits(self.tx, limited) if limited else ():
            if limit is not None:
                self.room[queue] = limit - store.count_waiting(self.tx, memory.flow_ids_of(queue) or [-1], limit)

    def decide(self, command: Enqueue, new: NewJob) -> Enqueued | Refusal:
        warning = self.admission.warning(new.flow)
        if new.id in self.there:
            return Enqueued(_as_sent(self.there[new.id], new), warning=warning)
        if new.key_digest is not None and new.key_digest in self.keys:
            fingerprint, job = self.keys[new.key_digest]
            if fingerprint == new.fingerprint:
                return Enqueued(_as_sent(job, new), replayed=True, warning=warning)
            return Refusal(IDEMPOTENCY_CONFLICT, "This idempotency key belongs to a job with other content.")
        if (refusal := self.admission.refusal(new)) is not None:
            return refusal
        queue = new.flow[0]
        if queue in self.room:
            if self.room[queue] <= 0:
                return Refusal(
                    QUEUE_FULL, "As many jobs wait in this queue as its limit allows.", retry_after_seconds=5
                )
            self.room[queue] -= 1
        job = self._job(new)
        self.new.append((command, new, job))
        if new.key_digest is not None:
            self.keys[new.key_digest] = (new.fingerprint or b"", job)
        self.admission.count(new.flow, warning)
        return Enqueued(job, warning=warning)

    def _job(self, new: NewJob) -> Job:
        now = self.tx.now
        start = self.starts[new.id] = terms.start_of(self.tx, new, self.admission.terms(new.flow))
        at, later = start.available_at, start.available_at > now
        return Job(
            id=new.id,
            flow=new.flow,
            state=State.SCHEDULED if later else State.AVAILABLE,
            priority=new.priority,
            available_at=at,
            due_at=at if later else None,
            fence=0,
            attempt=0,
            lease_losses=0,
            releases=0,
            throttles=0,
            max_attempts=start.max_attempts,
            timeout=start.timeout,
            retry_until=start.retry_until,
            created_at=now,
            correlation_id=new.correlation_id,
            parent_operation_id=new.parent_operation_id,
        )

    def write(self) -> None:
        if not self.new:
            return
        # only now: what was refused makes no flow and no queue
        self.flow_ids = flows.resolve(self.tx, {job.flow for _, _, job in self.new})
        keys = [(new.key_digest, new.id, new.fingerprint) for _, new, _ in self.new if new.key_digest is not None]
        if keys:
            # first, and in one order everywhere: a duplicate is found before anything else was written
            store.insert_keys(
                self.tx,
                [{"digest": digest, "job_id": job_id, "fingerprint": mark} for digest, job_id, mark in sorted(keys)],
            )
        store.insert_jobs(self.tx, [self._hot(job) for _, _, job in self.new])
        store.insert_contents(self.tx, [_content(command, new) for command, new, _ in self.new])
        references = [row for _, new, _ in self.new for row in references_of(new)]
        if references:
            store.insert_refs(self.tx, references)
        self.tx.on_commit(self._tell)

    def _hot(self, job: Job) -> dict[str, Any]:
        return {
            "id": job.id,
            "flow_id": self.flow_ids[job.flow],
            "state": int(job.state),
            "priority": job.priority,
            "available_at": job.available_at,
            "due_at": job.due_at,
            "created_at": job.created_at,
            **self.starts[job.id].hot(),
        }

    def _tell(self) -> None:
        memory = flows.here(self.tx)
        ready = Counter(job.flow for _, _, job in self.new if job.state is State.AVAILABLE)
        for _, _, job in self.new:
            memory.heads.lower(self.flow_ids[job.flow], (job.priority, job.available_at))
        if ready:
            memory.wake(ready)
        later = [job.available_at for _, _, job in self.new if job.state is State.SCHEDULED]
        if later:
            memory.promote_in((min(later) - self.tx.now) / MICROS)

    def _names(self) -> dict[int, Flow]:
        return _Names(self.tx)


class _Names(defaultdict[int, Flow]):
    """Flow names by id, looked up as needed."""

    def __init__(self, tx: Tx) -> None:
        super().__init__()
        self._tx = tx

    def __missing__(self, flow_id: int) -> Flow:
        self[flow_id] = flows.names(self._tx, [flow_id])[flow_id]
        return self[flow_id]


def job_of(row: Any, names: dict[int, Flow]) -> Job:
    """A row of the hot table as a record."""
    return Job(
        id=row.id,
        flow=names[row.flow_id],
        state=State(row.state),
        priority=row.priority,
        available_at=row.available_at,
        due_at=row.due_at,
        fence=row.fence,
        attempt=row.attempt,
        lease_losses=row.lease_losses,
        releases=row.releases,
        throttles=row.throttles,
        max_attempts=None if row.max_attempts == UNLIMITED else row.max_attempts,
        timeout=row.timeout_micros,
        retry_until=row.retry_until,
        created_at=row.created_at,
        claimed_at=row.claimed_at,
        ended_at=row.ended_at,
        cancel_requested_at=row.cancel_requested_at,
        worker=row.worker,
        category=row.category,
        ended_request_id=row.ended_request_id,
    )


def _as_sent(job: Job, new: NewJob) -> Job:
    """The hot row does not hold these; the same content was sent again."""
    return replace(job, correlation_id=new.correlation_id, parent_operation_id=new.parent_operation_id)


def _content(command: Enqueue, new: NewJob) -> dict[str, Any]:
    caller = command.caller
    return {
        "job_id": new.id,
        "payload": new.payload,
        "correlation_id": new.correlation_id,
        "parent_operation_id": new.parent_operation_id,
        "traceparent": caller.traceparent,
        "tracestate": caller.tracestate,
        "request_id": caller.request_id,
        "created_by": caller.principal.key_id,
    }


def content_of(new: NewJob, origin: Any) -> dict[str, Any]:
    """The contents of a job that the service itself makes: by whoever made its `origin`, and in that one's trace."""
    return {
        "job_id": new.id,
        "payload": new.payload,
        "correlation_id": new.correlation_id,
        "parent_operation_id": new.parent_operation_id,
        "traceparent": origin.traceparent,
        "tracestate": origin.tracestate,
        "request_id": origin.request_id,
        "created_by": origin.created_by,
    }


def references_of(new: NewJob) -> list[dict[str, Any]]:
    """Rows of `job_refs`."""
    named = ((CORRELATION, new.correlation_id), (PARENT, new.parent_operation_id))
    return [{"kind": kind, "digest": reference(text), "job_id": new.id} for kind, text in named if text is not None]


def reference(text: str) -> bytes:
    """What a correlation or parent id is found by."""
    return hashlib.sha256(text.encode()).digest()
