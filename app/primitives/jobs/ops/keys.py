"""What a job's keys have to follow when its state changes. Jobs without marks cost nothing here, not a statement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.db.tx import Tx
from app.primitives.jobs.model import ENDED, SOLE, UNTIL_STARTED, Mark, State
from app.primitives.jobs.ops import lines
from app.primitives.jobs.store import lines as slots
from app.primitives.jobs.store import uniques as store


def started(tx: Tx, rows: Iterable[Any]) -> None:
    """These jobs (their rows from before the claim) begin: keys that hold until then are free."""
    ids = sorted(row.id for row in rows if row.marks & UNTIL_STARTED and row.attempt == 0)
    if ids:
        store.update_released(tx, ids)


def due(tx: Tx, ids: Sequence[bytes]) -> None:
    """scheduled -> blocked for jobs with a concurrency key whose time has come, and -> available where a slot is free."""
    slots.update_blocked(tx, ids)
    lines.move(tx, entering=ids)


def left(tx: Tx, jobs: Mapping[bytes, tuple[int, State]]) -> None:
    """Jobs (id -> marks, state) were left in these states: slots and places in line, and unique keys, are given up where
    the state says so. An available job keeps its slot, an unknown one its unique key.
    """
    leaving = sorted(
        job_id for job_id, (marks, state) in jobs.items() if marks & Mark.CONCURRENCY and state is not State.AVAILABLE
    )
    if leaving:
        lines.move(tx, leaving=leaving)
    ended = sorted(job_id for job_id, (marks, state) in jobs.items() if marks & SOLE and state in ENDED)
    if ended:
        store.update_released(tx, ended)


def forgotten(tx: Tx, rows: Sequence[Any]) -> None:
    """These jobs are purged, and their keys with them."""
    if keyed := sorted(row.id for row in rows if row.marks & Mark.CONCURRENCY):
        lines.forget(tx, keyed)
    if sole := sorted(row.id for row in rows if row.marks & SOLE):
        store.delete_uniques(tx, sole)
