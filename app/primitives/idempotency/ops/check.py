"""Check: whoever comes first with a key gets it; the others are told what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app import reservations
from app.db.held import select_floor
from app.db.tx import Tx
from app.errors import IDEMPOTENCY_CONFLICT, Refusal
from app.holding import claim_columns, pushed, recalled
from app.primitives.idempotency import store
from app.primitives.idempotency.model import (
    OWNER_LOST,
    Check,
    Checked,
    Failure,
    Outcome,
    State,
)
from app.primitives.idempotency.ops.lapse import lapsed
from app.primitives.idempotency.ops.told import FLOOR, here
from app.reservations import Grant

ENDED = (State.COMPLETED, State.FAILED)


def check(tx: Tx, commands: Sequence[Check]) -> list[Checked | Refusal]:
    """A key that is new, open or past its retention -> running, owned by the first who checks; else what there is to know.

    Guarantee: one owner at a time, with a higher fence than any before. A key whose owner is lost becomes what that owner chose
    before anybody is answered. What needs no write takes no lock. A repeated `claim_id` gets its reservation again while that
    holds. Race: the primary key decides between two first checks; rows that are taken over are locked, lowest digest first, and
    the write repeats its condition. Raises: as a value `idempotency_conflict` for another request under the same key.
    """
    return _Checking(tx, commands).run()


@dataclass(slots=True)
class _Checking:
    tx: Tx
    commands: Sequence[Check]
    grant: Grant = field(init=False)
    rows: dict[bytes, Any] = field(default_factory=dict)
    owners: dict[bytes, int] = field(default_factory=dict)  # key -> the command that gets it
    owned: dict[int, Checked] = field(default_factory=dict)

    def run(self) -> list[Checked | Refusal]:
        # made before the first COMMIT: whether it got through is seen by its digest
        self.grant = self.tx.memo.setdefault("idempotency.check", reservations.mint_grant())
        digests = sorted({command.digest for command in self.commands})
        self.rows = {bytes(row.digest): row for row in store.select_keys(self.tx, digests)}
        self._insert([digest for digest in digests if digest not in self.rows])
        self._take_over([digest for digest in self.rows if self._to_be_had(digest)])
        self.tx.memo.setdefault("idempotency.owned", {}).update(self.owned)
        answers = self._answers()
        self._count(answers)
        return answers

    @property
    def _key(self) -> bytes:
        key: bytes = self.tx.host.token_key
        return key

    def _first(self, digest: bytes) -> tuple[int, Check]:
        return next((index, one) for index, one in enumerate(self.commands) if one.digest == digest)

    # -- new keys ------------------------------------------------------------------------------------------------------

    def _insert(self, missing: list[bytes]) -> None:
        if not missing:
            return
        fence = select_floor(self.tx, FLOOR) + 1
        rows = []
        for digest in missing:
            index, command = self._first(digest)
            self.owners[digest] = index
            self.owned[index] = self._checked(command, fence, 1)
            rows.append(self._columns(command, fence, 1, self.tx.now, None) | self._fresh(command))
        store.insert_keys(self.tx, rows)

    def _fresh(self, command: Check) -> dict[str, Any]:
        return {
            "digest": command.digest,
            "scope": command.scope.encode(),
            "state": State.RUNNING,
            "due_at": self.tx.now + command.lease,
            "grant_digest": self.grant.digest,
        }

    def _columns(self, command: Check, fence: int, attempt: int, created_at: int, past: bytes | None) -> dict[str, Any]:
        claim_digest, sealed = claim_columns(self._key, self.grant, command.caller, command.claim_id)
        return {
            "fence": fence,
            "attempt": attempt,
            "fingerprint": command.fingerprint,
            "on_owner_lost": command.on_owner_lost.number,
            "retention_micros": command.retention,
            "created_at": created_at,
            "lease_micros": command.lease,
            "claim_digest": claim_digest,
            "sealed": sealed,
            "past": past,
        }

    def _checked(self, command: Check, fence: int, attempt: int) -> Checked:
        token = reservations.token(self._key, self.grant, command.digest, fence)
        until = self.tx.now + command.lease
        return Checked(Outcome.ACQUIRED, attempt, fence, token, until, digest=command.digest)

    # -- keys that nobody is at work on --------------------------------------------------------------------------------

    def _to_be_had(self, digest: bytes) -> bool:
        row = self.rows[digest]
        if row.state == State.OPEN:
            return True
        if row.state == State.RUNNING or row.state in ENDED:
            return bool(row.due_at <= self.tx.now)
        return False

    def _take_over(self, digests: list[bytes]) -> None:
        if not digests:
            return
        locked = store.lock_keys(self.tx, sorted(digests))
        lost = [row for row in locked if row.state == State.RUNNING and row.due_at <= self.tx.now]
        if lost:
            lapsed(self.tx, lost)
            locked = store.lock_keys(self.tx, sorted(digests))
        self.rows |= {bytes(row.digest): row for row in locked}
        takers = {}
        for digest in sorted(digests):
            if self._to_be_had(digest) and (taker := self._taker(digest)) is not None:
                takers[digest] = taker
        if takers:
            self._write(takers)

    def _taker(self, digest: bytes) -> int | None:
        """The first who asks for the same; after the retention anybody may begin anew."""
        row = self.rows[digest]
        for index, command in enumerate(self.commands):
            fits = row.state in ENDED or command.fingerprint == bytes(row.fingerprint)
            if command.digest == digest and fits:
                return index
        return None

    def _write(self, takers: dict[bytes, int]) -> None:
        changes, anew = {}, []
        for digest, index in takers.items():
            row, command = self.rows[digest], self.commands[index]
            begins = row.state in ENDED
            attempt = 1 if begins else row.attempt + 1
            created_at = self.tx.now if begins else row.created_at
            changes[digest] = self._columns(command, row.fence + 1, attempt, created_at, pushed(row))
            anew.append(digest)
        store.update_taken(self.tx, self.grant.digest, changes)
        store.delete_results(self.tx, anew)
        self.rows |= {bytes(row.digest): row for row in store.lock_keys(self.tx, sorted(takers))}
        for digest, index in takers.items():
            row = self.rows[digest]
            if row.grant_digest is not None and bytes(row.grant_digest) == self.grant.digest:
                self.owners[digest] = index
                self.owned[index] = self._checked(self.commands[index], row.fence, row.attempt)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _answers(self) -> list[Checked | Refusal]:
        over = [digest for digest, row in self.rows.items() if row.state in ENDED]
        said = store.select_results(self.tx, over) if over else {}
        return [self._answer(index, command, said) for index, command in enumerate(self.commands)]

    def _answer(self, index: int, command: Check, said: dict[bytes, Any]) -> Checked | Refusal:
        if index in self.owned:
            return self.owned[index]
        owner = self.owners.get(command.digest)
        if owner is not None:
            first, mine = self.commands[owner], self.owned[owner]
            if first.fingerprint != command.fingerprint:
                return _conflict()
            if command.identity is not None and command.identity == first.identity:
                return Checked(
                    Outcome.ACQUIRED, mine.attempt, mine.fence, mine.token, mine.expires_at, replayed=True,
                    digest=command.digest,
                )  # fmt: skip
            return Checked(Outcome.IN_PROGRESS, mine.attempt, mine.fence, expires_at=mine.expires_at)
        row = self.rows[command.digest]
        if bytes(row.fingerprint) != command.fingerprint:
            return _conflict()
        return self._known(index, command, row, said.get(command.digest))

    def _known(self, index: int, command: Check, row: Any, said: Any) -> Checked:
        state, now = State(row.state), self.tx.now
        if state is State.RUNNING:
            until = row.due_at
            mine: Checked | None = self.tx.memo["idempotency.owned"].get(index)
            if mine is not None and bytes(row.grant_digest) == self.grant.digest:
                return mine  # an earlier try of this very unit was committed
            token = recalled(self._key, row, command.digest, command.caller, command.claim_id, now, until)
            if token is not None:
                return Checked(
                    Outcome.ACQUIRED, row.attempt, row.fence, token, until, replayed=True, digest=command.digest
                )
            return Checked(Outcome.IN_PROGRESS, row.attempt, row.fence, expires_at=until)
        if state is State.COMPLETED:
            result = b"null" if said is None or said.result is None else bytes(said.result)
            return Checked(Outcome.REPLAY, row.attempt, row.fence, result=result)
        if state is State.FAILED:
            failure = Failure(row.category or OWNER_LOST, None if said is None else said.message)
            return Checked(Outcome.FAILED, row.attempt, row.fence, failure=failure)
        if state is State.OPEN:  # taken over by nobody: a lease that has not ended by the database's own clock
            return Checked(Outcome.IN_PROGRESS, row.attempt, row.fence, expires_at=now)
        return Checked(Outcome.RECONCILE, row.attempt, row.fence, reason=row.category)

    def _count(self, answers: Sequence[Checked | Refusal]) -> None:
        happened = Counter("conflict" if isinstance(one, Refusal) else one.outcome.value for one in answers)
        memory = here(self.tx)
        self.tx.on_commit(lambda: memory.count(happened))


def _conflict() -> Refusal:
    return Refusal(
        IDEMPOTENCY_CONFLICT, "This key was used with another request. Use a new key, or send the request unchanged."
    )


def peek(tx: Tx, digests: Sequence[bytes]) -> list[bytes]:
    """Those of these keys that nobody is at work on at this moment."""
    return store.select_done(tx, digests)
