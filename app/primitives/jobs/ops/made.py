"""Jobs that another part of the service makes and waits for: made in its transaction, and looked at until they have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.access import Caller
from app.db.tx import Tx
from app.primitives.jobs.model import ENDED, Enqueue, Flow, NewJob, State
from app.primitives.jobs.ops.enqueue import insert
from app.primitives.jobs.store import lists, work


@dataclass(frozen=True, slots=True)
class Making:
    """One job to be made. What is not said comes from its type's contract, then from the settings."""

    id: bytes
    flow: Flow
    payload: bytes
    correlation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job stands. `result` only if it succeeded with one."""

    state: str
    over: bool
    result: bytes | None = None


def make(tx: Tx, jobs: Sequence[Making], caller: Caller) -> None:
    """Insert these jobs; nothing refuses them. Ids must be the same in every try of the caller's unit."""
    news = tuple(
        NewJob(id=one.id, flow=one.flow, payload=one.payload, correlation_id=one.correlation_id) for one in jobs
    )
    insert(tx, [Enqueue(news, caller)])


def ended(tx: Tx, ids: Sequence[bytes]) -> dict[bytes, Ended]:
    """How these jobs stand, those that are gone left out. Without a lock; by primary key."""
    found: dict[bytes, Ended] = {}
    for row in work.select_jobs(tx, sorted(ids)):
        state = State(row.state)
        result = lists.select_result(tx, row.id) if state is State.SUCCEEDED else None
        found[bytes(row.id)] = Ended(state.text, state in ENDED, result)
    return found
