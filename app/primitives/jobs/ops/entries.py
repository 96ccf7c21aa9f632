"""Entries: which of the jobs of one unit of enqueueing get a slot of their concurrency key, and which wait in line.

Decided in memory, job by job as they come, under the locks of the keys; written with few statements for the whole unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.db.tx import Tx
from app.primitives.jobs.model import Concurrency, Job, Place, State
from app.primitives.jobs.ops import lines
from app.primitives.jobs.store import lines as store


@dataclass(slots=True)
class _Line:
    """One key as this unit has left it so far."""

    name: bytes
    most: int
    last_position: int
    held: int
    waited_for: bool
    changed: bool = False


@dataclass(slots=True)
class _Slot:
    digest: bytes
    place: Place
    priority: int
    position: int


class Entries:
    """The keys that one unit comes to or leaves."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._lines: dict[bytes, _Line] = {}
        self._slots: dict[bytes, _Slot] = {}  # by job: as on disk, or as it will be
        self._on_disk: set[bytes] = set()
        self._changed: set[bytes] = set()
        self._gone: set[bytes] = set()
        self._idle: set[bytes] = set()  # keys that may have no job when all is written

    def open(self, keys: Iterable[Concurrency], holders: Sequence[bytes]) -> None:
        """Lock these keys, and those of jobs that are there and may be replaced (`holders`)."""
        wanted = {key.digest: key for key in keys}
        for slot in store.select_slots(self._tx, holders) if holders else ():
            self._slots[slot.job_id] = _Slot(bytes(slot.digest), Place(slot.place), slot.priority, slot.position)
        self._on_disk = set(self._slots)
        digests = {*wanted, *(slot.digest for slot in self._slots.values())}
        if not digests:
            return
        rows = lines.lock(self._tx, digests)
        while missing := sorted(wanted.keys() - rows.keys()):
            keys_of = [wanted[digest] for digest in missing]
            fresh = [{"digest": k.digest, "name": k.name, "most": k.limit, "last_position": 0} for k in keys_of]
            store.insert_missing_limits(self._tx, fresh)
            self._idle |= set(missing)
            rows = lines.lock(self._tx, digests)
        held = store.select_held(self._tx, list(rows))
        waited_for = {bytes(row.digest) for row in store.select_next(self._tx, dict.fromkeys(rows, 1))}
        for digest, row in rows.items():
            self._lines[digest] = _Line(
                row.name, row.most, row.last_position, held.get(digest, 0), digest in waited_for
            )

    def leave(self, job_id: bytes) -> None:
        """The job gives up its slot or its place in line; it may enter anew."""
        slot = self._slots.get(job_id)
        if slot is None:
            return
        if slot.place is Place.HOLDING and slot.digest in self._lines:
            self._lines[slot.digest].held -= 1
        slot.place = Place.APART
        self._idle.add(slot.digest)
        self._gone.add(job_id)

    def enter(self, job: Job, key: Concurrency) -> Job:
        """The job as it comes to its key: with a slot if one is free and nobody waits, else blocked. A job that is due later
        stands apart. The newest enqueue's limit is the key's.
        """
        line = self._lines[key.digest]
        line.most, line.changed = key.limit, True
        place = Place.APART
        if job.state is State.AVAILABLE:
            if not line.waited_for and line.held < line.most:
                line.held += 1
                place = Place.HOLDING
            else:
                line.waited_for = True
                place = Place.WAITING
                job = replace(job, state=State.BLOCKED)
        before = self._slots.get(job.id)
        if before is not None and before.digest == key.digest:
            position = before.position
        else:
            line.last_position += 1
            position = line.last_position
        self._slots[job.id] = _Slot(key.digest, place, job.priority, position)
        self._changed.add(job.id)
        self._gone.discard(job.id)
        self._idle.discard(key.digest)
        return job

    def write(self) -> frozenset[bytes]:
        """Write it all once the jobs are written; gives the jobs that became available by it, of this unit or not."""
        if not self._lines:
            return frozenset()
        limits = [
            {"digest": digest, "name": line.name, "most": line.most, "last_position": line.last_position}
            for digest, line in sorted(self._lines.items())
            if line.changed
        ]
        if limits:
            store.update_limits(self._tx, limits)
        rows = [(job_id in self._on_disk, self._row(job_id)) for job_id in sorted(self._changed - self._gone)]
        if fresh := [row for on_disk, row in rows if not on_disk]:
            store.insert_slots(self._tx, fresh)
        if moved := [row for on_disk, row in rows if on_disk]:
            store.upsert_slots(self._tx, moved)
        if gone := sorted(self._gone & self._on_disk):
            store.delete_slots(self._tx, gone)
        if self._idle:
            store.delete_empty_limits(self._tx, sorted(self._idle))
        open_ = {digest: line.most for digest, line in self._lines.items() if line.waited_for and line.held < line.most}
        return lines.refill(self._tx, open_) if open_ else frozenset()

    def _row(self, job_id: bytes) -> dict[str, Any]:
        slot = self._slots[job_id]
        return {
            "job_id": job_id,
            "digest": slot.digest,
            "place": int(slot.place),
            "priority": slot.priority,
            "position": slot.position,
        }
