"""Put and delete: what anybody may do to a value at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from app.db.tx import Tx
from app.errors import PAYLOAD_TOO_LARGE, STATE_CONFLICT, VALIDATION_FAILED, FieldError, Refusal
from app.primitives.cache import store
from app.primitives.cache.model import Place, Put, Stored
from app.primitives.cache.ops.locked import KEPT_MICROS, Book, Locked, lock
from app.primitives.cache.ops.told import EVERYBODY, tell


def put(tx: Tx, commands: Sequence[Put]) -> list[Stored | Refusal]:
    """Anything -> fresh. The last to come wins; whoever fills the entry meanwhile comes too late.

    Repeatable. Raises: as a value `state_conflict` for another version than the namespace's, `validation_failed` without a
    time to live where no policy gives one, `payload_too_large` for a value that is larger than the namespace may be.
    """
    locked = lock(tx, [command.place for command in commands])
    answers = [_stored(tx, command, locked.books[command.place.namespace]) for command in commands]
    last = {
        command.place.digest: (command, answer)
        for command, answer in zip(commands, answers, strict=True)
        if isinstance(answer, Stored)
    }
    if last:
        store.update_cancelled(tx, list(last))
        write(locked, [(command.place, command.value, answer) for command, answer in last.values()])
        tell(tx, dict.fromkeys(last, EVERYBODY), {"put": len(last)})
    locked.save()
    return answers


def _stored(tx: Tx, command: Put, book: Book) -> Stored | Refusal:
    version = book.row.version if command.version is None else command.version
    if book.row.version is not None and version != book.row.version:
        detail = "The namespace has another version now; this value belongs to an older or a newer one."
        return Refusal(STATE_CONFLICT, detail, extra={"version": book.row.version})
    return stored(tx, book, len(command.value), command.ttl, command.stale, version)


def stored(tx: Tx, book: Book, size: int, ttl: int | None, stale: int | None, version: str | None) -> Stored | Refusal:
    """What would be stored of a value, by what is asked and what the policy says."""
    lives = book.row.ttl_micros if ttl is None else ttl
    if lives is None:
        fault = FieldError("#/ttl_seconds", "is required: no policy of the namespace gives one")
        return Refusal(VALIDATION_FAILED, "The request is not valid.", errors=(fault,), status=422)
    most = book.row.max_bytes
    if most is not None and size > most:
        return Refusal(PAYLOAD_TOO_LARGE, f"The namespace holds at most {most} bytes.", extra={"max_bytes": most})
    fresh_until = tx.now + lives
    return Stored(fresh_until, fresh_until + (book.row.stale_micros if stale is None else stale), version)


def write(locked: Locked, values: Sequence[tuple[Place, bytes, Stored]]) -> None:
    """Write these values, of entries that nobody fills any more."""
    rows = []
    for place, value, answer in values:
        locked.replace(place, len(value))
        rows.append(_row(locked, place, value, answer))
    store.upsert_values(locked.tx, rows)


def _row(locked: Locked, place: Place, value: bytes, answer: Stored) -> dict[str, Any]:
    now = locked.tx.now
    return {
        "digest": place.digest,
        "namespace": place.namespace,
        "generation": locked.books[place.namespace].row.generation,
        "value": value,
        "size": len(value),
        "version": answer.version,
        "stored_at": now,
        "fresh_until": answer.fresh_until,
        "stale_until": answer.stale_until,
        "used_at": now,
        "due_at": max(answer.stale_until, now + KEPT_MICROS),
    }


def forget(tx: Tx, commands: Sequence[Place]) -> list[bool]:
    """Fresh, stale or being filled -> nothing. Tells of each whether there was a value; repeatable."""
    locked = lock(tx, commands)
    answers, gone = [], set()
    for place in commands:
        there = place.digest not in gone and locked.state(place) is not None
        answers.append(there)
        if place.digest in locked.rows and place.digest not in gone:
            locked.replace(place, None)
            gone.add(place.digest)
    if gone:
        store.update_cancelled(tx, list(gone))
        store.update_gone(tx, list(gone), tx.now + KEPT_MICROS)
        tell(tx, dict.fromkeys(gone, 1), Counter(deleted=sum(answers)))
    locked.save()
    return answers
