"""Acquire: a free lock goes to whose turn it is; all others get a place in its line, or are told who has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app import reservations
from app.clock import micros
from app.db.held import select_floor
from app.db.tx import Tx
from app.errors import Refusal
from app.holding import claim_columns, pushed, recalled
from app.primitives.locks import store
from app.primitives.locks.model import Acquire, Acquired, InLine, Leave, State
from app.primitives.locks.ops.refusals import locked
from app.primitives.locks.ops.told import here
from app.reservations import Grant

ALIVE_MICROS = micros(3)  # for how long a process is taken to live after it was last heard of
# how long a place is kept after its wait: a claim that comes again at once finds it
GRACE_MICROS = micros(2)
FLOOR = "locks"


def acquire(tx: Tx, commands: Sequence[Acquire]) -> list[Acquired | InLine | Refusal]:
    """free -> held, for the first in the line of each lock, or for the first to come where nobody waits.

    Guarantee: one unexpired reservation of a name at most, with a higher fence than any before; nobody passes one who waits.
    A repeated `claim_id` gets its reservation again while that holds, and else keeps its place. Race: the rows are locked,
    lowest digest first, and the write repeats its condition and is counted; rows of new names are made first, so that nobody
    waits for a row that is not there. Raises: as a value `locked`, for calls that do not wait.
    """
    return _Acquiring(tx, commands).run()


@dataclass(slots=True)
class _Acquiring:
    tx: Tx
    commands: Sequence[Acquire]
    grant: Grant = field(init=False)
    rows: dict[bytes, Any] = field(init=False)
    takers: dict[bytes, int] = field(default_factory=dict)  # lock -> the command that gets it
    answers: dict[int, Acquired | InLine | Refusal] = field(default_factory=dict)

    def run(self) -> list[Acquired | InLine | Refusal]:
        # made before the first COMMIT: whether it got through is seen by its digest
        self.grant = self.tx.memo.setdefault("locks.acquire", reservations.mint_grant())
        self.rows = self._lock(sorted({command.digest for command in self.commands}))
        self._recall()
        firsts = store.select_firsts(self.tx, [one for one in self._free() if self._awaited(one)])
        for index, command in enumerate(self.commands):
            if index not in self.answers and self._may_take(command, firsts):
                self.takers[command.digest] = index
        self._write()
        self._stand_in_line()
        self._count()
        return [self.answers[index] for index in range(len(self.commands))]

    def _lock(self, digests: list[bytes]) -> dict[bytes, Any]:
        rows = {bytes(row.digest): row for row in store.lock_locks(self.tx, digests)}
        if missing := [digest for digest in digests if digest not in rows]:
            names = {command.digest: command.name for command in self.commands}
            fresh = {"state": State.FREE, "due_at": self._purge_at()}
            store.insert_locks(
                self.tx, [{"digest": digest, "name": names[digest].encode(), **fresh} for digest in missing]
            )
            rows |= {bytes(row.digest): row for row in store.lock_locks(self.tx, digests)}
        return rows

    def _purge_at(self) -> int:
        return self.tx.now + micros(self.tx.host.settings.locks_retention_seconds)

    def _recall(self) -> None:
        """What an earlier call of the same claim was given, or an earlier try of this very unit."""
        mine = self.tx.memo.get("locks.acquired", {}) if self.tx.repeated else {}
        for index, command in enumerate(self.commands):
            row = self.rows[command.digest]
            if index in mine and row.grant_digest is not None and bytes(row.grant_digest) == self.grant.digest:
                self.answers[index] = mine[index]
                continue
            token = recalled(self._key, row, command.digest, command.caller, command.claim_id, self.tx.now, _until(row))
            if token is not None:
                self.answers[index] = Acquired(command.name, token, row.fence, row.due_at, replayed=True)

    @property
    def _key(self) -> bytes:
        key: bytes = self.tx.host.token_key
        return key

    def _free(self) -> list[bytes]:
        now = self.tx.now
        return [digest for digest, row in self.rows.items() if row.state == State.FREE or row.due_at <= now]

    def _awaited(self, digest: bytes) -> bool:
        return bool(self.rows[digest].awaited_until > self.tx.now)

    def _may_take(self, command: Acquire, firsts: dict[bytes, bytes]) -> bool:
        row = self.rows[command.digest]
        busy = row.state == State.HELD and row.due_at > self.tx.now
        first = firsts.get(command.digest, command.place)
        return not busy and command.digest not in self.takers and first == command.place

    # -- the write -----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        if not self.takers:
            return
        floor = select_floor(self.tx, FLOOR) if any(self.rows[one].fence == 0 for one in self.takers) else 0
        changes = {digest: self._change(digest, self.commands[index], floor) for digest, index in self.takers.items()}
        if store.update_acquired(self.tx, self.grant.digest, changes) != len(changes):
            # a lease that had ended by our measure of the clock has not by the database's own
            self.rows = {bytes(row.digest): row for row in store.lock_locks(self.tx, sorted(self.rows))}
            self.takers = {
                digest: index
                for digest, index in self.takers.items()
                if bytes(self.rows[digest].grant_digest or b"") == self.grant.digest
            }
        for digest, index in self.takers.items():
            self.answers[index] = self._acquired(self.commands[index], changes[digest]["fence"])
        self.tx.memo["locks.acquired"] = {index: self.answers[index] for index in self.takers.values()}
        waited = [self.commands[index] for index in self.takers.values() if self._waits(self.commands[index])]
        if waited:
            store.delete_waiters(self.tx, [one.place for one in waited])
            self.tx.on_commit(lambda: here(self.tx).left(_calls(waited)))

    def _waits(self, command: Acquire) -> bool:
        """It may have a place in the line: it waits, or an earlier call of the same claim did."""
        return self._awaited(command.digest) and (command.wait > 0 or command.claim_id is not None)

    def _change(self, digest: bytes, command: Acquire, floor: int) -> dict[str, Any]:
        row = self.rows[digest]
        claim_digest, sealed = claim_columns(self._key, self.grant, command.caller, command.claim_id)
        return {
            "fence": max(row.fence, floor) + 1,
            "owner": command.owner,
            "lease_micros": command.lease,
            "claim_digest": claim_digest,
            "sealed": sealed,
            "past": pushed(row),
        }

    def _acquired(self, command: Acquire, fence: int) -> Acquired:
        token = reservations.token(self._key, self.grant, command.digest, fence)
        return Acquired(command.name, token, fence, self.tx.now + command.lease)

    # -- who gets nothing ----------------------------------------------------------------------------------------------

    def _stand_in_line(self) -> None:
        memory, fresh = here(self.tx), []
        for index, command in enumerate(self.commands):
            if index in self.answers:
                continue
            self.answers[index] = InLine() if command.wait > 0 else self._locked(command)
            if command.wait > 0 and not memory.stands(command.place, command.number):
                fresh.append(command)
        if fresh:
            self._insert(fresh)

    def _locked(self, command: Acquire) -> Refusal:
        taker = self.takers.get(command.digest)
        row = self.rows[command.digest]
        if taker is not None:
            return locked(self.tx.now, self.commands[taker].owner, self.tx.now + self.commands[taker].lease)
        if row.state == State.HELD and row.due_at > self.tx.now:
            return locked(self.tx.now, row.owner, row.due_at)
        return locked(self.tx.now, None, None)

    def _insert(self, fresh: list[Acquire]) -> None:
        memory, tx = here(self.tx), self.tx
        rows = {command.place: self._row(command) for command in fresh}
        untils: dict[bytes, int] = {}
        for row in rows.values():
            untils[row["digest"]] = max(untils.get(row["digest"], 0), row["until"])
        store.insert_waiters(tx, list(rows.values()))
        store.update_awaited(tx, untils)
        attend(tx, [None])
        tx.on_commit(lambda: memory.stood(_calls(fresh)))

    def _row(self, command: Acquire) -> dict[str, Any]:
        return {
            "id": command.place,
            "digest": command.digest,
            "position": self.tx.now,
            "number": command.number,
            "until": self.tx.now + command.wait + GRACE_MICROS,
            "process": here(self.tx).process,
        }

    def _count(self) -> None:
        happened: Counter[str] = Counter()
        for answer in self.answers.values():
            if isinstance(answer, Refusal):
                happened["refused"] += 1
            elif isinstance(answer, Acquired) and not answer.replayed:
                happened["acquired"] += 1
        self.tx.on_commit(lambda: here(self.tx).count(happened))


def _calls(commands: Sequence[Acquire]) -> dict[bytes, int]:
    return {command.place: command.number for command in commands}


def _until(row: Any) -> int | None:
    return row.due_at if row.state == State.HELD else None


def attend(tx: Tx, commands: Sequence[None]) -> list[None]:
    """Say that this process lives, for those of its callers who stand in line."""
    memory = here(tx)
    until = tx.now + ALIVE_MICROS
    if memory.alive_until < until - ALIVE_MICROS // 6:
        store.upsert_process(tx, memory.process, until)

        def told() -> None:
            memory.alive_until = until

        tx.on_commit(told)
    return [None for _ in commands]


def leave(tx: Tx, commands: Sequence[Leave]) -> list[Refusal]:
    """Calls whose wait is over give up their places, and are told who has their lock.

    One whose claim may come again keeps its place for a moment: its row ends by itself.
    """
    memory = here(tx)
    gone = [command.acquire for command in commands if command.acquire.claim_id is None]
    if gone and store.delete_waiters(tx, [one.place for one in gone]):
        tx.on_commit(lambda: memory.wake({one.digest: 1 for one in gone}))
    tx.on_commit(lambda: memory.left(_calls([command.acquire for command in commands])))
    rows = {
        bytes(row.digest): row
        for row in store.select_locks(tx, sorted({command.acquire.digest for command in commands}))
    }
    tx.on_commit(lambda: memory.count({"refused": len(commands)}))
    return [_holder(tx, rows.get(command.acquire.digest)) for command in commands]


def _holder(tx: Tx, row: Any) -> Refusal:
    if row is not None and row.state == State.HELD and row.due_at > tx.now:
        return locked(tx.now, row.owner, row.due_at)
    return locked(tx.now, None, None)


def peek(tx: Tx, digests: Sequence[bytes]) -> list[bytes]:
    """Those of these locks that nobody holds at this moment."""
    return store.select_open(tx, digests)
