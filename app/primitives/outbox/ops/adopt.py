"""Adopt: what producers wrote by SQL, in their own transactions, becomes messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.access import Caller, Principal
from app.db.tx import Tx
from app.ids import new_id
from app.primitives.outbox.model.commands import NewMessage
from app.primitives.outbox.model.intake import Fault, judge
from app.primitives.outbox.ops import destinations
from app.primitives.outbox.ops.record import Recording
from app.primitives.outbox.store import intake as store

BATCH = 100
BY_SQL = Caller(Principal("sql", "sql", frozenset()), "sql")

_TAKEN = Fault("message_key belongs to a message with other content")


@dataclass(frozen=True, slots=True)
class Batch:
    """One round. Outcome: how many rows were looked at; `most` of them means that there may be more."""

    most: int = BATCH


def adopt(tx: Tx, commands: Sequence[Batch]) -> list[int]:
    """Committed rows become messages, in the order of their ids; what cannot become one is set aside with its reason.

    Guarantee: a row is gone only in the transaction that made its message, or found it: the same key with the same content.
    Rows that are set aside are kept as they were written and stop no other. Race: rows that another replica holds are left
    to it; rows whose producer has not committed are not seen.
    """
    return [take_over(tx, commands[0].most), *(0 for _ in commands[1:])]


def take_over(tx: Tx, most: int = BATCH) -> int:
    """The same in the caller's transaction; gives how many rows were looked at."""
    ids = store.select_waiting(tx, most)
    rows = store.lock_waiting(tx, ids, tx.host.settings.max_payload_bytes) if ids else ()
    if not rows:
        return 0
    known = set(destinations.read(tx, {row.destination for row in rows if isinstance(row.destination, str)}))
    work, adopted, aside = Recording(tx), [], {}
    judged = {row.id: _judge(tx, row, known) for row in rows}
    work.open([one for one in judged.values() if isinstance(one, NewMessage)])
    for row in rows:
        fault = _enter(work, judged[row.id], row)
        if fault is None:
            adopted.append(row.id)
        else:
            aside[row.id] = fault.reason
    work.write()
    for row_id, reason in aside.items():
        store.update_set_aside(tx, row_id, reason)
    if adopted:
        store.delete_adopted(tx, adopted)
    return len(rows)


def _judge(tx: Tx, row: Any, known: set[str]) -> NewMessage | Fault:
    identity = tx.memo.setdefault(("adopt", row.id), new_id())
    most_bytes = tx.host.settings.max_payload_bytes
    return judge(row, known, now=tx.now, most_bytes=most_bytes, message_id=identity)


def _enter(work: Recording, judged: NewMessage | Fault, row: Any) -> Fault | None:
    """None: the row is a message now, or was one before."""
    if isinstance(judged, Fault):
        return judged
    if judged.key_digest in work.there:
        fingerprint, _ = work.there[judged.key_digest]
        return None if fingerprint == judged.fingerprint else _TAKEN
    work.make(judged, BY_SQL, row.recorded_at)
    return None


def waiting(tx: Tx, _command: None) -> bool:
    """Whether a producer has written anything that is not adopted yet."""
    return store.any_waiting(tx)
