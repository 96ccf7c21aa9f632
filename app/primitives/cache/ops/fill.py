"""Fill: what a filler brings, or that it failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.db.tx import Tx
from app.errors import Refusal, not_found
from app.holding import End, Standing, stand
from app.primitives.cache import store
from app.primitives.cache.model import Fill, Filled, OnFailure, Place, Stored
from app.primitives.cache.ops.locked import KEPT_MICROS, Locked, lock
from app.primitives.cache.ops.told import EVERYBODY, tell
from app.primitives.cache.ops.write import stored, write
from app.reservations import lost, settled_otherwise


def fill(tx: Tx, commands: Sequence[Fill]) -> list[Filled | Refusal]:
    """Being filled -> fresh; or, where the filler failed, to be filled by the next who waits.

    Guarantee: counts only with the token of the newest, unexpired filling of an entry that nobody has put, deleted or cleared
    since, once; anything else is dropped (`reservation_lost`). A repeat with the same content is answered as before. A failure
    takes a stale value away where the policy says `error`. Race: rows are locked, and the write repeats the condition by the
    database's clock. Raises: as a value also what `put` refuses; the filling then goes on.
    """
    return _Filling(tx, commands).run()


@dataclass(slots=True)
class _Filling:
    tx: Tx
    commands: Sequence[Fill]
    locked: Locked = field(init=False)
    firsts: dict[bytes, tuple[Fill, Stored | None]] = field(default_factory=dict)
    refused: dict[int, Refusal] = field(default_factory=dict)
    expired: set[bytes] = field(default_factory=set)

    def run(self) -> list[Filled | Refusal]:
        self.locked = lock(self.tx, [command.place for command in self.commands])
        standings = [self._stand(command) for command in self.commands]
        for index, (command, standing) in enumerate(zip(self.commands, standings, strict=True)):
            if standing.holds and command.place.digest not in self.firsts:
                self._accept(index, command)
        if self.firsts:
            self._end()
            self._write([one for one in self.firsts.values() if one[0].place.digest not in self.expired])
        self.locked.save()
        return [
            self._answer(index, command, standing)
            for index, (command, standing) in enumerate(zip(self.commands, standings, strict=True))
        ]

    def _stand(self, command: Fill) -> Standing:
        row = self.locked.rows.get(command.place.digest)
        if row is None:
            return Standing()
        return stand(self.tx.host.token_key, row, command.place.digest, command.token, self.tx.now, row.fill_until)

    def _accept(self, index: int, command: Fill) -> None:
        if command.value is None:
            self.firsts[command.place.digest] = (command, None)
            return
        book = self.locked.books[command.place.namespace]
        answer = stored(self.tx, book, len(command.value), command.ttl, command.stale, book.row.version)
        if isinstance(answer, Refusal):
            self.refused[index] = answer
        else:
            self.firsts[command.place.digest] = (command, answer)

    def _end(self) -> None:
        said = {digest: command.said for digest, (command, _) in self.firsts.items()}
        grants = [self.locked.rows[digest].grant_digest for digest in said]
        if store.update_filled(self.tx, grants, said) != len(said):
            # between the lock and the write a lease ran out by the database's clock
            after = store.lock_entries(self.tx, list(said))
            self.expired = {digest for digest, row in after.items() if row.ended == End.HELD}

    def _write(self, ended: Sequence[tuple[Fill, Stored | None]]) -> None:
        good = [(one.place, one.value, answer) for one, answer in ended if one.value is not None and answer is not None]
        failed = [command.place for command, answer in ended if answer is None]
        if good:
            write(self.locked, good)
        self._drop_stale(failed)
        woken = {place.digest: EVERYBODY for place, _, _ in good} | {place.digest: 1 for place in failed}
        tell(self.tx, woken, Counter(filled=len(good), fill_failed=len(failed)))

    def _drop_stale(self, failed: Sequence[Place]) -> None:
        gone = [one for one in failed if self.locked.books[one.namespace].row.on_failure == OnFailure.ERROR]
        for place in gone:
            self.locked.replace(place, None)
        if gone:
            store.update_gone(self.tx, [place.digest for place in gone], self.tx.now + KEPT_MICROS)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _answer(self, index: int, command: Fill, standing: Standing) -> Filled | Refusal:
        row = self.locked.rows.get(command.place.digest)
        if row is None:
            return not_found("cache entry")
        if index in self.refused:
            return self.refused[index]
        if not standing.holds:
            return self._late(command, standing, row)
        if command.place.digest in self.expired:
            return lost("filling", "expired", row.fence)
        first, _ = self.firsts[command.place.digest]
        if first.said != command.said:
            return settled_otherwise()
        return Filled(row.fence, replayed=first is not command)

    def _late(self, command: Fill, standing: Standing, row: Any) -> Filled | Refusal:
        ended = standing.ended
        if ended is not None and ended.end is End.SETTLED:
            same = ended.settlement == command.said
            return Filled(ended.fence, replayed=True) if same else settled_otherwise()
        return standing.lost("filling", row.fence or None)
