"""Jobs told with their keys. Reads only, and nothing for jobs that have none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.db.tx import Tx
from app.primitives.jobs.model import SOLE, Job, KeysTold, Mark, Until
from app.primitives.jobs.store import lines, uniques


def with_keys(tx: Tx, jobs: Sequence[Job]) -> tuple[Job, ...]:
    """The jobs in their order, each with its `keys`."""
    sole = {row.job_id: row for row in _of(jobs, SOLE, lambda ids: uniques.select_uniques(tx, ids))}
    slots = {row.job_id: row for row in _of(jobs, Mark.CONCURRENCY, lambda ids: lines.select_slots(tx, ids))}
    digests = sorted({bytes(slot.digest) for slot in slots.values()})
    limits = {bytes(row.digest): row for row in lines.select_limits(tx, digests)} if digests else {}
    return tuple(
        replace(job, keys=_told(job, sole.get(job.id), slots.get(job.id), limits)) if job.marks else job for job in jobs
    )


def _of(jobs: Sequence[Job], marks: int, read: Any) -> Sequence[Any]:
    ids = sorted(job.id for job in jobs if job.marks & marks)
    found: Sequence[Any] = read(ids) if ids else ()
    return found


def _told(job: Job, sole: Any, slot: Any, limits: dict[bytes, Any]) -> KeysTold:
    told = KeysTold()
    if sole is not None and job.marks & Mark.DEBOUNCED:
        told = replace(told, debounce=(text_of(sole.name), sole.latest_at))
    elif sole is not None:
        until = Until.STARTED if job.marks & Mark.UNIQUE_UNTIL_STARTED else Until.FINISHED
        told = replace(told, unique=(text_of(sole.name), until))
    limit = limits.get(bytes(slot.digest)) if slot is not None else None
    if limit is not None:
        told = replace(told, concurrency=(text_of(limit.name), limit.most))
    return told


def text_of(name: bytes) -> str:
    """A key as it was sent."""
    return bytes(name).decode()
