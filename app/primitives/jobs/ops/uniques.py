"""Uniques: which job holds a unique or debounce key, and what an enqueue with that key does to it.

Guarantee: of the jobs of one type, one at most holds a key; the unique index over `job_uniques.holding` decides. A holder's
contents change only under the lock of its row and before its first attempt, so an enqueue that was answered `deduplicated` and
replaced them is what the run sees. Race: an enqueue against the claim of the holder: whoever locks the row first; then the key
is free and the enqueue makes a job of its own, or the key is still held and the claim hands out the newer contents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.access import Principal
from app.db.tx import Tx
from app.errors import OVERLOADED, UNIQUE_CONFLICT, Refusal
from app.primitives.jobs.model import (
    SOLE,
    WAITING,
    Debounce,
    Flow,
    Job,
    Mark,
    NewJob,
    OnConflict,
    State,
    id_text,
)
from app.primitives.jobs.ops import lines
from app.primitives.jobs.ops.records import job_of, referring
from app.primitives.jobs.store import control
from app.primitives.jobs.store import uniques as store

PASSES = 5  # of looking at holders that change while their rows are locked


@dataclass(slots=True)
class Holder:
    """The job that holds a key, as it is on disk or as this unit has left it."""

    job: Job
    latest_at: int | None
    newest: bytes


class Holders:
    """Who holds the keys that the jobs of one unit name."""

    def __init__(self, tx: Tx, names: Mapping[int, Flow]) -> None:
        self._tx = tx
        self._names = names
        self._by_digest: dict[bytes, Holder] = {}
        self._fresh: dict[bytes, dict[str, Any]] = {}  # by job
        self._changed: dict[bytes, dict[str, Any]] = {}

    def look(self, news: Sequence[NewJob]) -> list[bytes]:
        """Find the holders; lock the rows of those that may be changed or be given another idempotency key. Gives of those
        the ids that have a place at a concurrency key.
        """
        soles = [(new, new.sole.digest) for new in news if new.sole is not None]
        digests = sorted({digest for _, digest in soles})
        if not digests:
            return []
        firmly = {digest for new, digest in soles if changes(new) or new.key_digest is not None}
        rows, locked = self._locked(digests, firmly, {new.concurrency.digest for new in news if new.concurrency})
        told = (
            {row.job_id: row for row in control.select_references(self._tx, [row.id for row in rows])} if rows else {}
        )
        for row in rows:
            job = job_of(row, self._names)
            if (more := told.get(row.id)) is not None:
                job = referring(job, more)
            self._by_digest[bytes(row.digest)] = Holder(job, row.latest_at, bytes(row.newest))
        return [row.id for row in rows if row.id in locked and row.marks & Mark.CONCURRENCY]

    def _locked(
        self, digests: Sequence[bytes], firmly: set[bytes], keys: set[bytes]
    ) -> tuple[Sequence[Any], set[bytes]]:
        locked: set[bytes] = set()
        for _ in range(PASSES):
            rows = store.select_holders(self._tx, digests)
            open_ = [row for row in rows if bytes(row.digest) in firmly and row.id not in locked]
            if not open_:
                return rows, locked
            lines.lock_waiting(self._tx, [row.id for row in open_ if row.state == State.BLOCKED], keys)
            ids = sorted(row.id for row in open_)
            control.lock_jobs(self._tx, ids)
            locked |= set(ids)
        raise Refusal(
            OVERLOADED, "The holder of this key changes too quickly; nothing was done.", retry_after_seconds=1
        )

    def of(self, new: NewJob) -> Holder | None:
        return None if new.sole is None else self._by_digest.get(new.sole.digest)

    def made(self, new: NewJob, job: Job) -> None:
        """A new job takes the key."""
        if new.sole is None:
            return
        latest_at = _latest(self._tx, new, None)
        self._by_digest[new.sole.digest] = Holder(job, latest_at, new.id)
        self._fresh[job.id] = {
            "job_id": job.id,
            "digest": new.sole.digest,
            "holding": new.sole.digest,
            "name": new.sole.name,
            "latest_at": latest_at,
            "newest": new.id,
        }

    def replaced(self, new: NewJob, holder: Holder, job: Job) -> None:
        """The holder has the contents of a newer enqueue."""
        latest_at = _latest(self._tx, new, holder)
        if job.id in self._fresh:
            self._fresh[job.id] |= {"latest_at": latest_at, "newest": new.id}
        else:
            self._changed[job.id] = {"b_id": job.id, "b_latest_at": latest_at, "b_newest": new.id}
        holder.job, holder.latest_at, holder.newest = job, latest_at, new.id

    def write(self) -> None:
        """Before the jobs: a duplicate is found before they are written."""
        if self._fresh:
            store.insert_uniques(self._tx, sorted(self._fresh.values(), key=lambda row: bytes(row["digest"])))
        if self._changed:
            store.update_newest(self._tx, [self._changed[job_id] for job_id in sorted(self._changed)])


def changes(new: NewJob) -> bool:
    """Whether this enqueue wants its contents in the holder's place."""
    return new.debounce is not None or (new.unique is not None and new.unique.on_conflict is OnConflict.REPLACE)


def refusal(new: NewJob, holder: Holder, principal: Principal) -> Refusal | None:
    """Why this enqueue cannot be answered with the holder; None if it can."""
    job = holder.job
    if not principal.allows(job.flow[0]):
        return Refusal(
            UNIQUE_CONFLICT, "A job of a queue that this key's name patterns do not cover holds the unique key."
        )
    if new.unique is not None and new.unique.on_conflict is OnConflict.REJECT:
        return conflict(job, "It holds the unique key.")
    if changes(new) and (job.state not in WAITING or job.attempt > 0):
        why = "It holds the unique key, and it cannot be replaced any more: it has been started."
        return conflict(job, why)
    return None


def conflict(job: Job, why: str) -> Refusal:
    """`unique_conflict` that names the holder."""
    extra = {"job_id": id_text(job.id), "state": job.state.text}
    return Refusal(UNIQUE_CONFLICT, f"Job {id_text(job.id)} is {job.state.text}. {why}", extra=extra)


def put_off(tx: Tx, debounce: Debounce, holder: Holder | None) -> int:
    """When a debounced job is due: `delay` from now, but never later than the window's first enqueue allows; so it lies in the
    past once that moment is over.
    """
    latest_at = holder.latest_at if holder is not None else None
    first = tx.now + debounce.max_wait if latest_at is None else latest_at
    return min(tx.now + debounce.delay, first)


def _latest(tx: Tx, new: NewJob, holder: Holder | None) -> int | None:
    if new.debounce is None:
        return None
    known = holder.latest_at if holder is not None else None
    return tx.now + new.debounce.max_wait if known is None else known


# -- an earlier try of the same unit ---------------------------------------------------------------------------------------


def recall(tx: Tx, ids: Sequence[bytes]) -> dict[bytes, bytes]:
    """Enqueue ids of this unit -> the job that an earlier try, whose COMMIT got no answer, has given their contents to."""
    given = {one: tx.memo["replaced", one] for one in ids if ("replaced", one) in tx.memo}
    if not given:
        return {}
    newest = {row.job_id: row.newest for row in store.select_uniques(tx, sorted(set(given.values())))}
    ours = {job_id for job_id, one in newest.items() if one in given}
    return {one: job_id for one, job_id in given.items() if job_id in ours}


# -- an operator's retry ---------------------------------------------------------------------------------------------------


class Returning:
    """Ended jobs that an operator sends round again: they take their unique keys anew, the first of each key."""

    def __init__(self, tx: Tx, rows: Iterable[Any], names: Mapping[int, Flow]) -> None:
        self._tx = tx
        self._taking: list[bytes] = []
        ids = sorted(row.id for row in rows if row.marks & SOLE)
        self._digests = {row.job_id: bytes(row.digest) for row in store.select_uniques(tx, ids)} if ids else {}
        held = store.select_holders(tx, sorted(set(self._digests.values()))) if ids else ()
        self._holders = {bytes(row.digest): job_of(row, names) for row in held}

    def take(self, job: Job) -> Refusal | None:
        """Take the key of this job, if it has one; else say who holds it."""
        digest = self._digests.get(job.id)
        if digest is None:
            return None
        holder = self._holders.setdefault(digest, job)
        if holder.id != job.id:
            return conflict(holder, "It holds the unique key of this job.")
        self._taking.append(job.id)
        return None

    def write(self) -> None:
        if self._taking:
            store.update_taken(self._tx, sorted(self._taking))
