"""Lines: who has a slot of a concurrency key, and who waits for one. One place decides it for every verb.

A job of a key stands in one of three places: HOLDING a slot (available, running), WAITING in line (blocked), or APART
(scheduled, unknown, ended). Its position is given at its enqueue and stays, so the order is (priority, position), and a job that
comes back from a retry comes back to where it was. How many slots are held is derived from the places and the jobs' own rows;
there is no counter that could be wrong.

Guarantee: who changes what stands at a key holds the key's row of `job_limits` and ends with `refill`. So at every commit:
where somebody waits, all slots are held; and no more are held than the newest limit allows, but for those from before it fell.
Race: locks are taken in one order: own jobs, keys by digest, blocked jobs of these keys, unique keys. Whoever names a job that
may be blocked calls `lock_waiting` before it locks the job. What still meets in a ring is found by the database and run again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from app.db.tx import Tx
from app.primitives.jobs.model import Place, State
from app.primitives.jobs.ops import flows
from app.primitives.jobs.store import lines as store

PASSES = 5  # of a refill that meets places which the jobs' own rows do not confirm


def lock(tx: Tx, digests: Iterable[bytes]) -> dict[bytes, Any]:
    """Lock these keys; gives their rows by digest."""
    wanted = sorted(set(digests))
    if not wanted:
        return {}
    rows = {bytes(row.digest): row for row in store.lock_limits(tx, wanted)}
    if tx.dialect.locks_are_local:
        store.update_turns(tx, wanted)
    return rows


def lock_waiting(tx: Tx, ids: Sequence[bytes], others: Iterable[bytes] = ()) -> None:
    """Lock the keys of those of these jobs that wait in line, before their rows are locked; with them, to keep to the order,
    `others` that this transaction comes to later.
    """
    waiting = {bytes(slot.digest) for slot in store.select_slots(tx, ids, Place.WAITING)} if ids else set()
    if waiting:
        lock(tx, {*waiting, *others})


def move(tx: Tx, leaving: Sequence[bytes] = (), entering: Sequence[bytes] = ()) -> frozenset[bytes]:
    """Jobs whose rows are locked and written leave their slot or their place in line (`leaving`), or come to the line
    (`entering`: their rows say blocked). Then free slots go to whoever is next. Gives the jobs that became available.
    """
    slots = store.select_slots(tx, [*leaving, *entering])
    limits = lock(tx, {bytes(slot.digest) for slot in slots})
    if leaving:
        store.update_places(tx, leaving, Place.APART)
    if entering:
        store.update_places(tx, entering, Place.WAITING)
    return refill(tx, {digest: row.most for digest, row in limits.items()})


def refill(tx: Tx, limits: dict[bytes, int]) -> frozenset[bytes]:
    """Give the free slots of these keys (digest -> limit), which are locked, to those who wait. blocked -> available.

    A place that the job's own row does not confirm is mended on the way and takes no slot.
    """
    freed: list[Any] = []
    for _ in range(PASSES):
        held = store.select_held(tx, list(limits)) if limits else {}
        room = {digest: most - held.get(digest, 0) for digest, most in limits.items()}
        room = {digest: free for digest, free in room.items() if free > 0}
        ids = sorted(bytes(row.job_id) for row in store.select_next(tx, room)) if room else []
        if not ids:
            break
        store.update_unblocked(tx, ids)
        rows = store.select_states(tx, ids)
        _mend(tx, ids, rows)
        ready = [row for row in rows if row.state == State.AVAILABLE]
        freed += ready
        if len(ready) == len(ids):
            break
    _tell(tx, freed)
    return frozenset(bytes(row.id) for row in freed)


def _mend(tx: Tx, ids: Sequence[bytes], rows: Sequence[Any]) -> None:
    """Write for each of these jobs the place that its own row says."""
    places: dict[Place, list[bytes]] = defaultdict(list)
    for row in rows:
        places[place_of(State(row.state))].append(bytes(row.id))
    for place, those in places.items():
        if place is not Place.WAITING:
            store.update_places(tx, those, place)
    if gone := set(ids) - {bytes(row.id) for row in rows}:
        store.delete_slots(tx, sorted(gone))


def place_of(state: State) -> Place:
    """Where a job in this state stands at its key."""
    if state in (State.AVAILABLE, State.RUNNING):
        return Place.HOLDING
    return Place.WAITING if state is State.BLOCKED else Place.APART


def _tell(tx: Tx, freed: Sequence[Any]) -> None:
    if not freed:
        return
    memory, names = flows.here(tx), flows.names(tx, {row.flow_id for row in freed})
    ready = Counter(names[row.flow_id] for row in freed)

    def lower() -> None:
        for row in freed:
            memory.heads.lower(row.flow_id, (row.priority, row.available_at))

    def told() -> None:
        lower()
        memory.wake(ready)

    lower()  # at once too: a claim in this very transaction looks for them
    tx.on_commit(told)


def forget(tx: Tx, ids: Sequence[bytes]) -> None:
    """These jobs are purged: their places go, and keys that nobody has any more."""
    digests = {bytes(slot.digest) for slot in store.select_slots(tx, ids)}
    limits = lock(tx, digests)
    store.delete_slots(tx, ids)
    if limits:
        refill(tx, {digest: row.most for digest, row in limits.items()})
        store.delete_empty_limits(tx, sorted(limits))
