"""Workers as they were seen: in the table, in this process's memory, and waiting at its desk. For people; no authority."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from app.clock import micros
from app.db.tx import Tx
from app.primitives.jobs.here import Sighting
from app.primitives.jobs.model import Claim
from app.primitives.jobs.ops import flows
from app.primitives.jobs.store import figures as store

Handlers = tuple[tuple[str, tuple[int, ...]], ...]
Seen = dict[tuple[str, str], Sighting]

KEPT = micros(86_400)
ACTIVE, SILENT, GONE = "active", "silent", "gone"
CHUNK = 500
FORGOTTEN_AT_ONCE = 100

_decode = msgspec.json.Decoder(Handlers).decode


def seen(tx: Tx, waiting: Sequence[Claim], queue: str | None = None) -> Seen:
    """By (worker, queue), who was seen in the last day; with `queue` only there. `waiting`: claims at this process's desk."""
    found: Seen = {}
    for row in store.select_workers(tx, tx.now - KEPT, queue):
        known = Sighting(_decode(row.handlers), row.last_claimed_at, row.last_beat_at, row.seen_at)
        found[row.worker, row.queue] = known
    here: Seen = dict(flows.here(tx).snapshot()[1])
    for claim in waiting:
        for place in claim.queues:
            now = Sighting(claim.handlers, tx.now, None, tx.now)
            here[claim.worker, place] = here.get((claim.worker, place), now).with_newer(now)
    for (worker, place), newer in here.items():
        if queue in (None, place):
            found[worker, place] = found.get((worker, place), newer).with_newer(newer)
    return found


def handles(sighting: Sighting, type_: str, version: int) -> bool:
    """Whether the worker's last claim would have been given work of this type and version."""
    if sighting.last_claimed_at is None:
        return False
    return not sighting.handlers or any(type_ == name and version in some for name, some in sighting.handlers)


def lately(moment: int | None, now: int, window: int) -> bool:
    return moment is not None and moment >= now - window


def state_of(sighting: Sighting, now: int, window: int, *, has_work: bool) -> str:
    """`active`: it claims, or it beats and there is nothing that it could claim. `silent`: it beats, but has not claimed for
    the whole window though there is work for it. `gone`: neither.
    """
    if lately(sighting.last_claimed_at, now, window):
        return ACTIVE
    if not lately(sighting.last_beat_at, now, window):
        return GONE
    return SILENT if has_work else ACTIVE


def write(tx: Tx, workers: Mapping[tuple[str, str], Sighting]) -> None:
    """Write sightings down, leaving alone what each does not know: a beat says nothing of claims and handlers."""
    groups: dict[tuple[str, ...], list[dict[str, object]]] = {}
    for (worker, queue), sighting in workers.items():
        changes = ["seen_at"]
        if sighting.last_claimed_at is not None:
            changes += ["last_claimed_at", "handlers"]
        if sighting.last_beat_at is not None:
            changes += ["last_beat_at"]
        groups.setdefault(tuple(changes), []).append(
            {
                "digest": hashlib.sha256(f"{worker}\0{queue}".encode()).digest(),
                "worker": worker,
                "queue": queue,
                "handlers": msgspec.json.encode(sighting.handlers),
                "last_claimed_at": sighting.last_claimed_at,
                "last_beat_at": sighting.last_beat_at,
                "seen_at": sighting.seen_at,
            }
        )
    for changed, rows in sorted(groups.items()):
        # in one order everywhere, so that two replicas that write the same rows wait for each other and never in a ring
        rows.sort(key=lambda row: row["digest"])  # type: ignore[arg-type,return-value]  # bytes
        for start in range(0, len(rows), CHUNK):
            store.upsert_workers(tx, rows[start : start + CHUNK], changed)


def forget(tx: Tx) -> int:
    """Forget some of those that were not seen for a day; gives how many."""
    return store.delete_old_workers(tx, tx.now - KEPT, FORGOTTEN_AT_ONCE)
