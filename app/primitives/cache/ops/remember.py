"""Remember: a value that is there is given; of all who miss one, one gets to fill it. And `give_back`, if that one is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app import reservations
from app.db.tx import Tx
from app.holding import End, claim_columns, pushed, recalled, stand
from app.primitives.cache import store
from app.primitives.cache.model import Found, Place, Remember, Remembered, Value
from app.primitives.cache.ops.locked import KEPT_MICROS, Locked, lock, value_of
from app.primitives.cache.ops.told import here, tell
from app.reservations import Grant


def remember(tx: Tx, commands: Sequence[Remember]) -> list[Remembered]:
    """Fresh values are given. What is stale or not there goes to the first who asks to be filled; the others get the stale
    value, or hear that it is being filled.

    Guarantee: one unexpired filling of an entry at most, with a higher fence than any before. A repeated `claim_id` gets its
    filling again while that holds. Race: the namespace's row is locked, also for entries that are not there yet.
    """
    return _Remembering(tx, commands).run()


@dataclass(slots=True)
class _Remembering:
    tx: Tx
    commands: Sequence[Remember]
    grant: Grant = field(init=False)
    locked: Locked = field(init=False)
    values: dict[bytes, Value] = field(default_factory=dict)  # that may be used
    takers: dict[bytes, int] = field(default_factory=dict)  # entry -> the command that gets to fill it
    taken: dict[int, Remembered] = field(default_factory=dict)

    def run(self) -> list[Remembered]:
        # made before the first COMMIT: whether it got through is seen by its digest
        self.grant = self.tx.memo.setdefault("cache.remember", reservations.mint_grant())
        self.locked = lock(self.tx, [command.place for command in self.commands])
        self._look()
        self._take()
        self.locked.save()
        self.tx.memo.setdefault("cache.taken", {}).update(self.taken)
        answers = [self._answer(index, command) for index, command in enumerate(self.commands)]
        happened = Counter(one.found.value for one in answers if not one.replayed)
        memory = here(self.tx)
        self.tx.on_commit(lambda: memory.count(happened))
        return answers

    @property
    def _key(self) -> bytes:
        key: bytes = self.tx.host.token_key
        return key

    def _look(self) -> None:
        there = {one.place.digest for one in self.commands if self.locked.state(one.place) is not None}
        contents = store.select_contents(self.tx, sorted(there)) if there else {}
        for digest, content in contents.items():
            value = value_of(self.locked.rows[digest], content, self.tx.now)
            if value is not None:
                self.values[digest] = value

    def _take(self) -> None:
        fillings = []
        for index, command in enumerate(self.commands):
            if command.place.digest in self.takers or not self._wanted(command.place):
                continue
            self.takers[command.place.digest] = index
            fence = self.locked.books[command.place.namespace].next_fence()
            fillings.append(self._filling(command, fence))
            token = reservations.token(self._key, self.grant, command.place.digest, fence)
            self.taken[index] = Remembered(
                Found.FILL, self.values.get(command.place.digest), token, fence, self.tx.now + command.lease,
                place=command.place,
            )  # fmt: skip
        if fillings:
            store.upsert_fillings(self.tx, fillings)

    def _wanted(self, place: Place) -> bool:
        return not self.locked.fills(place) and self.locked.state(place) is not Found.FRESH

    def _filling(self, command: Remember, fence: int) -> dict[str, Any]:
        row = self.locked.rows.get(command.place.digest)
        claim_digest, sealed = claim_columns(self._key, self.grant, command.caller, command.claim_id)
        until = self.tx.now + command.lease
        value = self.values.get(command.place.digest)
        return {
            "digest": command.place.digest,
            "namespace": command.place.namespace,
            "generation": self.locked.books[command.place.namespace].row.generation,
            "used_at": self.tx.now,
            "due_at": max(until + KEPT_MICROS, 0 if value is None else value.stale_until),
            "fill_until": until,
            "fence": fence,
            "ended": int(End.HELD),
            "lease_micros": command.lease,
            "grant_digest": self.grant.digest,
            "settlement_digest": None,
            "claim_digest": claim_digest,
            "sealed": sealed,
            "past": None if row is None else pushed(row),
        }

    # -- answers -------------------------------------------------------------------------------------------------------

    def _answer(self, index: int, command: Remember) -> Remembered:
        if index in self.taken:
            return self.taken[index]
        if command.place.digest in self.takers:
            return self._beside(command)
        value = self.values.get(command.place.digest)
        if value is not None and value.found is Found.FRESH:
            return Remembered(Found.FRESH, value)
        return self._filled_by(index, command, value)

    def _beside(self, command: Remember) -> Remembered:
        """Another of this very unit fills it."""
        index = self.takers[command.place.digest]
        first, mine = self.commands[index], self.taken[index]
        if command.identity is not None and command.identity == first.identity:
            return Remembered(
                Found.FILL, mine.value, mine.token, mine.fence, mine.expires_at, replayed=True, place=command.place
            )
        return _meanwhile(mine.value, mine.expires_at)

    def _filled_by(self, index: int, command: Remember, value: Value | None) -> Remembered:
        row = self.locked.rows[command.place.digest]
        mine: Remembered | None = self.tx.memo["cache.taken"].get(index)
        if mine is not None and bytes(row.grant_digest) == self.grant.digest:
            return mine  # an earlier try of this very unit was committed
        until = row.fill_until
        token = recalled(self._key, row, command.place.digest, command.caller, command.claim_id, self.tx.now, until)
        if token is not None:
            return Remembered(Found.FILL, value, token, row.fence, until, replayed=True, place=command.place)
        return _meanwhile(value, until)


def _meanwhile(value: Value | None, until: int | None) -> Remembered:
    return Remembered(Found.FILLING if value is None else Found.STALE, value, expires_at=until)


def give_back(tx: Tx, commands: Sequence[Remembered]) -> list[int]:
    """End fillings that were given out and reached nobody, where they still hold. The next who waits gets them."""
    given = [(one.place, one.token) for one in commands if one.place is not None and one.token is not None]
    locked = lock(tx, [place for place, _ in given])
    back = []
    for place, token in given:
        row = locked.rows.get(place.digest)
        if row is not None and stand(tx.host.token_key, row, place.digest, token, tx.now, row.fill_until).holds:
            back.append(place.digest)
    if back:
        store.update_cancelled(tx, back)
        tell(tx, dict.fromkeys(back, 1), {})
    return [1 for _ in commands]
