"""Enqueue: jobs come to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.clock import MICROS
from app.db.tx import Tx
from app.errors import IDEMPOTENCY_CONFLICT, QUEUE_FULL, Refusal
from app.primitives.jobs.model import Enqueue, Enqueued, Flow, Job, NewJob, State
from app.primitives.jobs.ops import flows, replacing, terms, uniques
from app.primitives.jobs.ops.admission import Admission
from app.primitives.jobs.ops.entries import Entries
from app.primitives.jobs.ops.records import Names, job_of, referring
from app.primitives.jobs.ops.replacing import Made
from app.primitives.jobs.store import control, held
from app.primitives.jobs.store import work as store


def enqueue(tx: Tx, commands: Sequence[Enqueue]) -> list[list[Enqueued | Refusal]]:
    """Insert the jobs of all commands in one go.

    Guarantee: a job whose `Enqueued` was answered is on disk. A key that is there gives its job (`replayed`) if the content
    is the same, else `idempotency_conflict`; a unique or debounce key that is held gives its holder (`deduplicated`), with the
    new contents if the enqueue asks for that. Race: of two enqueues with one key, one inserts; the other's unit fails as a
    duplicate, runs again and finds the first. After a COMMIT without an answer the ids themselves are looked up. Raises: as
    values also `unique_conflict`, `contract_required`, `contract_violated`, `payload_invalid` and `queue_full`.
    """
    work = _Work(tx, {job.flow for command in commands for job in command.jobs})
    units = [(command, [work.admission.keyed(job) for job in command.jobs]) for command in commands]
    jobs = [job for _, those in units for job in those]
    if tx.repeated:
        work.recall([job.id for job in jobs])
    work.look_up_keys([job.key_digest for job in jobs if job.key_digest])
    work.measure_depths({job.flow[0] for job in jobs})
    if any(job.marks for job in jobs):
        work.open_keys(jobs)
    outcomes = [[work.decide(command, job) for job in those] for command, those in units]
    freed = work.write()
    return [[_as_freed(outcome, freed) for outcome in those] for those in outcomes] if freed else outcomes


def insert(tx: Tx, commands: Sequence[Enqueue]) -> None:
    """Insert jobs that the service itself makes, in the caller's transaction. They have no keys, and nothing refuses them."""
    jobs = [(command, new) for command in commands for new in command.jobs]
    work = _Work(tx, {new.flow for _, new in jobs})
    for command, new in jobs:
        work.make(command, new)
    work.write()


class _Work:
    """One transaction's worth of enqueueing: decides job by job, writes table by table."""

    def __init__(self, tx: Tx, wanted: set[Flow]) -> None:
        self.tx = tx
        self.flow_ids: dict[Flow, int] = {}
        self.admission = Admission.of(tx, wanted)
        self.names = Names(tx)
        self.there: dict[bytes, Enqueued] = {}
        self.keys: dict[bytes, tuple[bytes, Job, bool]] = {}  # fingerprint, job, whether it was there before the key
        self.key_rows: list[dict[str, Any]] = []
        self.room: dict[str, int] = {}
        self.new: dict[bytes, Made] = {}
        self.replaced: dict[bytes, Made] = {}
        self.events: list[dict[str, Any]] = []
        self.entries = Entries(tx)
        self.holders = uniques.Holders(tx, self.names)

    def recall(self, ids: list[bytes]) -> None:
        given = uniques.recall(self.tx, ids)
        rows = store.select_jobs(self.tx, sorted({*ids, *given.values()}))
        jobs = {row.id: job_of(row, self.names) for row in rows}
        self.there = {job_id: Enqueued(jobs[job_id]) for job_id in ids if job_id in jobs}
        self.there |= {
            one: Enqueued(jobs[job_id], deduplicated=True) for one, job_id in given.items() if job_id in jobs
        }

    def look_up_keys(self, digests: list[bytes]) -> None:
        if not digests:
            return
        rows = store.select_keys(self.tx, sorted(set(digests)))
        jobs = {row.id: job_of(row, self.names) for row in store.select_jobs(self.tx, [row.job_id for row in rows])}
        older = [row.job_id for row in rows if row.deduplicated]
        for told in control.select_references(self.tx, older) if older else ():
            if told.job_id in jobs:
                jobs[told.job_id] = referring(jobs[told.job_id], told)
        self.keys = {
            row.digest: (row.fingerprint, jobs[row.job_id], bool(row.deduplicated))
            for row in rows
            if row.job_id in jobs
        }

    def measure_depths(self, queues: set[str]) -> None:
        memory = flows.here(self.tx)
        limited = sorted(queue for queue in queues if memory.max_depth(queue) is not None)
        # the row's lock makes the count exact among replicas; queues without a limit pay nothing
        for queue, limit in store.lock_limits(self.tx, limited) if limited else ():
            if limit is not None:
                self.room[queue] = limit - store.count_waiting(self.tx, memory.flow_ids_of(queue) or [-1], limit)

    def open_keys(self, jobs: Sequence[NewJob]) -> None:
        """Find and lock what the keys of these jobs need, but for those that only repeat what was done."""
        fresh = [new for new in jobs if new.marks and new.id not in self.there and new.key_digest not in self.keys]
        placed = self.holders.look(fresh)
        coming = [new for new in fresh if self.holders.of(new) is None or uniques.changes(new)]
        self.entries.open([new.concurrency for new in coming if new.concurrency is not None], placed)

    def decide(self, command: Enqueue, new: NewJob) -> Enqueued | Refusal:
        warning = self.admission.warning(new.flow)
        if new.id in self.there:
            done = self.there[new.id]
            return replace(done, job=_as_sent(done.job, new), warning=warning)
        if new.key_digest is not None and new.key_digest in self.keys:
            return self._repeat(new, self.keys[new.key_digest], warning)
        if (refused := self.admission.refusal(new)) is not None:
            return refused
        holder = self.holders.of(new)
        if holder is not None:
            return self._deduplicate(command, new, holder, warning)
        if (full := self._takes_room(new)) is not None:
            return full
        self.admission.count(new.flow, warning)
        return Enqueued(self.make(command, new), warning=warning)

    def make(self, command: Enqueue, new: NewJob) -> Job:
        """A new job, whatever may speak against it."""
        job = self._job(new)
        if new.concurrency is not None:
            job = self.entries.enter(job, new.concurrency)
        self.new[job.id] = Made(command.caller, new, job)
        self.holders.made(new, job)
        self._keep_key(new, job, deduplicated=False)
        return job

    def _repeat(self, new: NewJob, kept: tuple[bytes, Job, bool], warning: Refusal | None) -> Enqueued | Refusal:
        fingerprint, job, deduplicated = kept
        if fingerprint != new.fingerprint:
            return Refusal(IDEMPOTENCY_CONFLICT, "This idempotency key belongs to a job with other content.")
        first = self.tx.repeated and self.tx.memo.get(("deduplicated", new.id)) == job.id
        told = job if deduplicated else _as_sent(job, new)
        return Enqueued(told, replayed=not first, deduplicated=deduplicated, warning=warning)

    def _deduplicate(
        self, command: Enqueue, new: NewJob, holder: uniques.Holder, warning: Refusal | None
    ) -> Enqueued | Refusal:
        if (refused := uniques.refusal(new, holder, command.caller.principal)) is not None:
            return refused
        if uniques.changes(new):
            if new.flow[0] != holder.job.flow[0] and (full := self._takes_room(new)) is not None:
                return full
            self._replace(command, new, holder)
        self._keep_key(new, holder.job, deduplicated=True)
        return Enqueued(holder.job, deduplicated=True, warning=warning)

    def _takes_room(self, new: NewJob) -> Refusal | None:
        queue = new.flow[0]
        if queue in self.room:
            if self.room[queue] <= 0:
                return Refusal(
                    QUEUE_FULL, "As many jobs wait in this queue as its limit allows.", retry_after_seconds=5
                )
            self.room[queue] -= 1
        return None

    def _replace(self, command: Enqueue, new: NewJob, holder: uniques.Holder) -> None:
        """The holder's contents become those of the new enqueue; it stays the job that it is."""
        before = holder.job
        if new.debounce is not None:
            new = replace(new, available_at=uniques.put_off(self.tx, new.debounce, holder), delay=None)
        job = replace(
            self._job(new), id=before.id, created_at=before.created_at, fence=before.fence, claimed_at=before.claimed_at,
            lease_losses=before.lease_losses, releases=before.releases, throttles=before.throttles,
            worker=before.worker, category=before.category, cancel_requested_at=before.cancel_requested_at,
        )  # fmt: skip
        self.entries.leave(job.id)
        if new.concurrency is not None:
            job = self.entries.enter(job, new.concurrency)
        made = Made(command.caller, new, job)
        (self.new if job.id in self.new else self.replaced)[job.id] = made
        self.holders.replaced(new, holder, job)
        self.tx.memo["replaced", new.id] = job.id
        if new.unique is not None:
            self.events.append(replacing.event(self.tx, made))

    def _keep_key(self, new: NewJob, job: Job, *, deduplicated: bool) -> None:
        if new.key_digest is None:
            return
        self.keys[new.key_digest] = (new.fingerprint or b"", job, deduplicated)
        if deduplicated:
            self.tx.memo["deduplicated", new.id] = job.id
        self.key_rows.append(
            {
                "digest": new.key_digest,
                "job_id": job.id,
                "fingerprint": new.fingerprint,
                "deduplicated": int(deduplicated),
            }
        )

    def _job(self, new: NewJob) -> Job:
        start = terms.start_of(self.tx, new, self.admission.terms(new.flow))
        later = start.available_at > self.tx.now
        return Job(
            id=new.id,
            flow=new.flow,
            state=State.SCHEDULED if later else State.AVAILABLE,
            priority=new.priority,
            available_at=start.available_at,
            due_at=start.available_at if later else None,
            fence=0,
            attempt=0,
            lease_losses=0,
            releases=0,
            throttles=0,
            max_attempts=start.max_attempts,
            timeout=start.timeout,
            retry_until=start.retry_until,
            lease=start.lease,
            created_at=self.tx.now,
            correlation_id=new.correlation_id,
            parent_operation_id=new.parent_operation_id,
            marks=new.marks,
        )

    def write(self) -> frozenset[bytes]:
        """Gives the jobs that became available because others left their keys."""
        made = [*self.new.values(), *self.replaced.values()]
        if made:
            # only now: what was refused makes no flow and no queue
            self.flow_ids = flows.resolve(self.tx, {one.job.flow for one in made})
        if self.key_rows:
            # first, and in one order everywhere: a duplicate is found before anything else was written
            store.insert_keys(self.tx, sorted(self.key_rows, key=lambda row: bytes(row["digest"])))
        self.holders.write()
        if self.new:
            store.insert_jobs(self.tx, [replacing.hot(made.job, self.flow_ids) for made in self.new.values()])
            store.insert_contents(self.tx, [replacing.content(made) for made in self.new.values()])
            if references := [row for made in self.new.values() for row in replacing.references(made)]:
                store.insert_refs(self.tx, references)
        if self.replaced:
            replacing.write(self.tx, list(self.replaced.values()), self.flow_ids)
        if self.events:
            held.insert_events(self.tx, self.events)
        if self.new or self.replaced:
            self.tx.on_commit(self._tell)
        return self.entries.write()

    def _tell(self) -> None:
        memory = flows.here(self.tx)
        jobs = [made.job for made in (*self.new.values(), *self.replaced.values())]
        ready = Counter(job.flow for job in jobs if job.state is State.AVAILABLE)
        for job in jobs:
            memory.heads.lower(self.flow_ids[job.flow], (job.priority, job.available_at))
        if ready:
            memory.wake(ready)
        later = [job.available_at for job in jobs if job.state is State.SCHEDULED]
        if later:
            memory.promote_in((min(later) - self.tx.now) / MICROS)


def _as_sent(job: Job, new: NewJob) -> Job:
    """The hot row does not hold these; the same content was sent again."""
    return replace(job, correlation_id=new.correlation_id, parent_operation_id=new.parent_operation_id)


def _as_freed(outcome: Enqueued | Refusal, freed: frozenset[bytes]) -> Enqueued | Refusal:
    """A job that came to the line and, at the end of the unit, to a slot."""
    if isinstance(outcome, Enqueued) and outcome.job.state is State.BLOCKED and outcome.job.id in freed:
        return replace(outcome, job=replace(outcome.job, state=State.AVAILABLE))
    return outcome
