"""Settle and renew: what an owner does with its token. And `give_back`, for one that never got it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app.db.tx import Tx
from app.errors import Refusal, not_found
from app.holding import End, Standing, stand
from app.primitives.idempotency import store
from app.primitives.idempotency.model import Beat, Checked, Renewed, Settle, Settled, State
from app.primitives.idempotency.ops.told import tell
from app.reservations import lost, settled_otherwise


def settle(tx: Tx, commands: Sequence[Settle]) -> list[Settled | Refusal]:
    """running -> completed, failed, unknown, or open again, as each owner says.

    Guarantee: counts only with the token of the newest, unexpired reservation, once. A repeat with the same content is answered
    as before (`replayed`), also when others have had the key since; other content is `settlement_conflict`, anything else
    `reservation_lost`. Race: the rows stay locked from the check to the write, and the write repeats the condition by the
    database's clock.
    """
    return _Settling(tx, commands).run()


@dataclass(slots=True)
class _Settling:
    tx: Tx
    commands: Sequence[Settle]
    rows: dict[bytes, Any] = field(init=False)
    firsts: dict[bytes, Settle] = field(default_factory=dict)
    expired: set[bytes] = field(default_factory=set)

    def run(self) -> list[Settled | Refusal]:
        digests = sorted({command.key_digest for command in self.commands})
        self.rows = {bytes(row.digest): row for row in store.lock_keys(self.tx, digests)}
        standings = [_stand(self.tx, one.key_digest, one.token, self.rows) for one in self.commands]
        for command, standing in zip(self.commands, standings, strict=True):
            if standing.holds:
                self.firsts.setdefault(command.key_digest, command)
        if self.firsts:
            self._write()
        return [self._answer(command, standing) for command, standing in zip(self.commands, standings, strict=True)]

    def _write(self) -> None:
        changes = {digest: self._change(command) for digest, command in self.firsts.items()}
        grants = [self.rows[digest].grant_digest for digest in self.firsts]
        if store.update_settled(self.tx, grants, changes) != len(changes):
            # between the lock and the write a lease ran out by the database's clock
            after = store.select_keys(self.tx, sorted(self.firsts))
            self.expired = {bytes(row.digest) for row in after if row.state == State.RUNNING}
        done = {digest: one for digest, one in self.firsts.items() if digest not in self.expired}
        self._say(done)
        tell(self.tx, done, Counter(one.state.text for one in done.values()))

    def _change(self, command: Settle) -> dict[str, Any]:
        keeps = self.tx.now + self.rows[command.key_digest].retention_micros
        return {
            "state": int(command.state),
            "due_at": None if command.state is State.UNKNOWN else keeps,
            "settlement_digest": command.digest,
            "category": None if command.state is State.COMPLETED else command.category,
        }

    def _say(self, done: dict[bytes, Settle]) -> None:
        """A later attempt may find what an earlier one said."""
        if old := [digest for digest in done if self.rows[digest].attempt > 1]:
            store.delete_results(self.tx, old)
        told = [
            {"digest": digest, "result": one.result, "message": one.message}
            for digest, one in done.items()
            if one.state is not State.OPEN
        ]
        if told:
            store.insert_results(self.tx, told)

    def _answer(self, command: Settle, standing: Standing) -> Settled | Refusal:
        row = self.rows.get(command.key_digest)
        if row is None:
            return not_found("key")
        if standing.holds:
            first = self.firsts[command.key_digest]
            if command.key_digest in self.expired:
                return lost("key", "expired", row.fence)
            if first.digest != command.digest:
                return settled_otherwise()
            return Settled(command.state, row.attempt, row.fence, replayed=first is not command)
        ended = standing.ended
        if ended is None or ended.end is not End.SETTLED:
            return standing.lost("key", row.fence)
        if ended.settlement != command.digest:
            return settled_otherwise()
        return Settled(command.state, row.attempt, ended.fence, replayed=True)


def _stand(tx: Tx, digest: bytes, token: str, rows: dict[bytes, Any]) -> Standing:
    row = rows.get(digest)
    if row is None:
        return Standing()
    return stand(tx.host.token_key, row, digest, token, tx.now, row.due_at if row.state == State.RUNNING else None)


def renew(tx: Tx, commands: Sequence[Beat]) -> list[Renewed | Refusal]:
    """Extend leases to now + the asked time, and never back.

    Guarantee: only with the token of the newest, unexpired reservation; nothing else changes. Repeatable.
    """
    digests = sorted({command.key_digest for command in commands})
    rows = {bytes(row.digest): row for row in store.select_keys(tx, digests)}
    standings = [_stand(tx, command.key_digest, command.token, rows) for command in commands]
    ends: dict[bytes, int] = {}
    for command, standing in zip(commands, standings, strict=True):
        if standing.holds:
            row = rows[command.key_digest]
            lease = row.lease_micros if command.lease is None else command.lease
            ends[command.key_digest] = max(ends.get(command.key_digest, row.due_at), tx.now + lease)
    if ends:
        fences = {digest: rows[digest].fence for digest in ends}
        grants = [rows[digest].grant_digest for digest in ends]
        if store.update_renewed(tx, fences, grants, ends) != len(ends):
            rows = {bytes(row.digest): row for row in store.select_keys(tx, digests)}  # others were quicker at some
            standings = [_stand(tx, command.key_digest, command.token, rows) for command in commands]
            ends = {digest: row.due_at for digest, row in rows.items()}
    return [
        _renewed(command, standing, rows.get(command.key_digest), ends)
        for command, standing in zip(commands, standings, strict=True)
    ]


def _renewed(command: Beat, standing: Standing, row: Any, ends: dict[bytes, int]) -> Renewed | Refusal:
    if row is None:
        return not_found("key")
    return Renewed(row.fence, ends[command.key_digest]) if standing.holds else standing.lost("key", row.fence)


def give_back(tx: Tx, commands: Sequence[Checked]) -> list[int]:
    """running -> open for grants that reached nobody, where they are still the newest. The next is the first attempt again."""
    rows = {bytes(row.digest): row for row in store.lock_keys(tx, sorted({one.digest for one in commands}))}
    mine = [one for one in commands if one.token and _stand(tx, one.digest, one.token, rows).holds]
    if mine:
        digests = [one.digest for one in mine]
        keep = max(rows[digest].retention_micros for digest in digests)
        store.update_given_back(tx, digests, [rows[digest].grant_digest for digest in digests], tx.now + keep)
        tell(tx, digests, {})
    return [1 for _ in commands]
