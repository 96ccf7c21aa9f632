"""Lines: messages of one destination with one ordering key are sent one after the other. One place decides it.

Guarantee: at every commit, of the messages that wait in a line exactly one is not `blocked`; it stays that one through
retries and through `unknown`, until it is sent or dead. Positions are given at the recording, in the order of the locks, and
kept, so that what comes back comes back to where it was, behind the one that is under way.
Race: whoever lets a message in or out holds the line's row. Locks are taken in one order: own messages, then lines by digest,
then blocked messages, which nobody else touches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.clock import MICROS
from app.db.tx import Tx
from app.primitives.outbox.model.states import State
from app.primitives.outbox.ops import flows
from app.primitives.outbox.store import lines as store
from app.primitives.outbox.store import work


class Entering:
    """New messages come to their lines: opened once for a unit, then asked for each, then written."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._last: dict[bytes, int] = {}
        self._busy: set[bytes] = set()
        self._places: list[dict[str, Any]] = []

    def open(self, digests: Iterable[bytes]) -> None:
        """Lock these lines, making those that are not there.

        Race: an empty line may be purged between the two statements; it is then made again.
        """
        wanted = sorted(set(digests))
        while missing := [digest for digest in wanted if digest not in self._last]:
            store.insert_missing_lines(self._tx, missing)
            self._last |= {bytes(row.digest): row.last_position for row in _lock(self._tx, missing)}
        if wanted:
            self._busy = {bytes(row.digest) for row in store.select_firsts(self._tx, wanted)}

    def enter(self, message_id: bytes, digest: bytes) -> bool:
        """Give the message its place; says whether it is the only one that waits there."""
        self._last[digest] += 1
        self._places.append({"message_id": message_id, "digest": digest, "waits": 1, "position": self._last[digest]})
        alone = digest not in self._busy
        self._busy.add(digest)
        return alone

    def write(self) -> None:
        if self._places:
            store.insert_places(self._tx, self._places)
            store.update_positions(
                self._tx,
                [{"digest": digest, "last_position": last} for digest, last in sorted(self._last.items())],
            )


def _lock(tx: Tx, digests: Sequence[bytes]) -> Sequence[Any]:
    rows = store.lock_lines(tx, digests)
    if tx.dialect.locks_are_local:
        store.update_turns(tx, digests)
    return rows


def leave(tx: Tx, ids: Sequence[bytes]) -> None:
    """These messages, which were the ones under way in their lines, are sent or dead: whoever is next is unblocked."""
    digests = _of(tx, ids)
    if not digests:
        return
    store.update_waits(tx, ids, waits=False)
    _advance(tx, digests)


def step_out(tx: Tx, ids: Sequence[bytes]) -> None:
    """These messages, which are not the ones under way in their lines, wait no more."""
    if _of(tx, ids):
        store.update_waits(tx, ids, waits=False)


def _of(tx: Tx, ids: Sequence[bytes]) -> list[bytes]:
    """The lines of these messages, locked."""
    digests = sorted({bytes(row.digest) for row in store.select_places(tx, ids)}) if ids else []
    if digests:
        _lock(tx, digests)
    return digests


def _advance(tx: Tx, digests: Sequence[bytes]) -> None:
    nexts = sorted(bytes(row.message_id) for row in store.select_firsts(tx, digests))
    if nexts:
        store.update_unblocked(tx, nexts)
        _tell(tx, work.select_messages(tx, nexts))


def come_back(tx: Tx, rows: Mapping[bytes, State]) -> dict[bytes, State]:
    """Dead messages, whose rows are locked, are to wait again (id -> the state that they would have alone). Gives the states
    that they get: where another message of the line is under way, `blocked`.
    """
    places = {bytes(row.message_id): bytes(row.digest) for row in store.select_places(tx, list(rows))} if rows else {}
    digests = sorted(set(places.values()))
    if not digests:
        return dict(rows)
    _lock(tx, digests)
    busy = {bytes(row.digest) for row in store.select_firsts(tx, digests)}
    states = dict(rows)
    for message_id in sorted(places):  # ids sort by the moment of their recording
        digest = places[message_id]
        if digest in busy:
            states[message_id] = State.BLOCKED
        busy.add(digest)
    store.update_waits(tx, sorted(places), waits=True)
    return states


def forget(tx: Tx, ids: Sequence[bytes]) -> None:
    """These messages are deleted: lines that nobody has a place in any more go too."""
    digests = _of(tx, ids)
    if digests:
        store.delete_places(tx, ids)
        store.delete_empty_lines(tx, digests)


def _tell(tx: Tx, rows: Sequence[Any]) -> None:
    memory, names = flows.here(tx), flows.Names(tx)
    ready = Counter(names[row.flow_id] for row in rows if row.state == State.PENDING)
    later = [row.due_at for row in rows if row.state == State.DELAYED]

    def told() -> None:
        if ready:
            memory.wake(ready)
        if later:
            memory.promote_in((min(later) - tx.now) / MICROS)

    tx.on_commit(told)
