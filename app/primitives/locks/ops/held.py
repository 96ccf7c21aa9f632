"""Renew and release: what a holder does with its token. And `give_back`, for one that never got it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.clock import micros
from app.db.tx import Tx
from app.errors import Refusal
from app.holding import End, Standing, stand
from app.primitives.locks import store
from app.primitives.locks.model import RELEASED, Acquired, Hold, Released, Renewed, State, digest_of
from app.primitives.locks.ops.told import here
from app.reservations import lost


def renew(tx: Tx, commands: Sequence[Hold]) -> list[Renewed | Refusal]:
    """Extend leases to now + the asked time, and never back.

    Guarantee: only with the token of the newest, unexpired reservation; nothing else changes. Repeatable. Race: a release, a
    break or another's acquire that commits first wins, and this answers `reservation_lost`.
    """
    rows, standings = _look(tx, commands, store.select_locks)
    ends = _ends(tx, commands, rows, standings)
    if ends:
        fences = {digest: rows[digest].fence for digest in ends}
        grants = [rows[digest].grant_digest for digest in ends]
        if store.update_renewed(tx, fences, grants, ends) != len(ends):
            rows, standings = _look(tx, commands, store.select_locks)  # others were quicker at some
            ends = {digest: row.due_at for digest, row in rows.items()}
    return [
        Renewed(command.name, rows[command.digest].fence, ends[command.digest])
        if standing.holds
        else _lost(standing, rows.get(command.digest))
        for command, standing in zip(commands, standings, strict=True)
    ]


def _ends(tx: Tx, commands: Sequence[Hold], rows: dict[bytes, Any], standings: Sequence[Standing]) -> dict[bytes, int]:
    ends: dict[bytes, int] = {}
    for command, standing in zip(commands, standings, strict=True):
        if standing.holds:
            row = rows[command.digest]
            lease = row.lease_micros if command.lease is None else command.lease
            ends[command.digest] = max(ends.get(command.digest, row.due_at), tx.now + lease)
    return ends


def release(tx: Tx, commands: Sequence[Hold]) -> list[Released | Refusal]:
    """held -> free, and those who wait are told.

    Guarantee: counts only with the token of the newest, unexpired reservation, once; a repeat is answered as before
    (`replayed`), also when others have had the lock since. Race: the rows stay locked from the check to the write, and the
    write repeats the condition by the database's clock.
    """
    rows, standings = _look(tx, commands, store.lock_locks)
    due = sorted({command.digest for command, standing in zip(commands, standings, strict=True) if standing.holds})
    expired: set[bytes] = set()
    if due:
        grants = [rows[digest].grant_digest for digest in due]
        if store.update_released(tx, grants, due, RELEASED, _purge_at(tx)) != len(due):
            # between the lock and the write the lease ran out by the database's clock
            expired = {bytes(row.digest) for row in store.select_locks(tx, due) if row.state == State.HELD}
    _tell(tx, [digest for digest in due if digest not in expired])
    seen: set[bytes] = set()
    answers: list[Released | Refusal] = []
    for command, standing in zip(commands, standings, strict=True):
        if standing.holds and command.digest in expired:
            answers.append(lost("lock", "expired", rows[command.digest].fence))
        elif standing.holds:
            answers.append(Released(command.name, rows[command.digest].fence, replayed=command.digest in seen))
            seen.add(command.digest)
        elif standing.ended is not None and standing.ended.end is End.SETTLED:
            answers.append(Released(command.name, standing.ended.fence, replayed=True))
        else:
            answers.append(_lost(standing, rows.get(command.digest)))
    return answers


def _purge_at(tx: Tx) -> int:
    return tx.now + micros(tx.host.settings.locks_retention_seconds)


def _tell(tx: Tx, freed: Sequence[bytes]) -> None:
    if freed:
        memory = here(tx)
        tx.on_commit(lambda: memory.count({"released": len(freed)}))
        tx.on_commit(lambda: memory.wake(dict.fromkeys(freed, 1)))


def give_back(tx: Tx, commands: Sequence[Acquired]) -> list[int]:
    """held -> free for grants that reached nobody, where they are still the newest."""
    release(tx, [Hold(one.name, digest_of(one.name), one.token) for one in commands])
    return [1 for _ in commands]


def _look(tx: Tx, commands: Sequence[Hold], read: Any) -> tuple[dict[bytes, Any], list[Standing]]:
    digests = sorted({command.digest for command in commands})
    rows = {bytes(row.digest): row for row in read(tx, digests)}
    return rows, [_stand(tx, command, rows.get(command.digest)) for command in commands]


def _stand(tx: Tx, command: Hold, row: Any) -> Standing:
    if row is None:
        return Standing()
    until = row.due_at if row.state == State.HELD else None
    return stand(tx.host.token_key, row, command.digest, command.token, tx.now, until)


def _lost(standing: Standing, row: Any) -> Refusal:
    return standing.lost("lock", None if row is None else row.fence)
