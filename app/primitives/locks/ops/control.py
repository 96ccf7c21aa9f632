"""What others than holders do: break and verify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.clock import micros
from app.db.held import select_floor
from app.db.tx import Tx
from app.errors import Refusal, not_found
from app.primitives.audit.ops import Entry, record
from app.primitives.locks import store
from app.primitives.locks.model import Break, Broken, State, Verified, Verify
from app.primitives.locks.ops.acquire import FLOOR
from app.primitives.locks.ops.told import here


def break_locks(tx: Tx, commands: Sequence[Break]) -> list[Broken | Refusal]:
    """held -> free, against the will of the holder, whose token is worth nothing from then on.

    Guarantee: audited in the same transaction. With `fence` only that reservation is broken, so that a repeat cannot hit the
    next holder. What is not held is answered `broken: false`. Race: against a release or an acquire, whoever locks the row
    first. Raises: as a value `not_found` for a name that was never held, or was purged since.
    """
    rows = {bytes(row.digest): row for row in store.lock_locks(tx, sorted({one.digest for one in commands}))}
    answers = []
    for command in commands:
        row = rows.get(command.digest)
        answers.append(not_found("lock") if row is None else _break(tx, command, row))
        if isinstance(answers[-1], Broken) and answers[-1].broken:
            del rows[command.digest]  # a second one in this unit finds nothing to break
            rows |= {bytes(fresh.digest): fresh for fresh in store.select_locks(tx, [command.digest])}
    return answers


def _break(tx: Tx, command: Break, row: Any) -> Broken:
    held = row.state == State.HELD and row.due_at > tx.now
    if not held or (command.fence is not None and command.fence != row.fence):
        return Broken(command.name, broken=False, fence=row.fence, owner=row.owner if held else None)
    purge_at = tx.now + micros(tx.host.settings.locks_retention_seconds)
    broken = store.update_broken(tx, command.digest, row.fence, purge_at) == 1
    if broken:
        _audit(tx, command, row)
        memory = here(tx)
        tx.on_commit(lambda: memory.count({"broken": 1}))
        tx.on_commit(lambda: memory.wake({command.digest: 1}))
    return Broken(command.name, broken=broken, fence=row.fence, owner=row.owner)


def _audit(tx: Tx, command: Break, row: Any) -> None:
    entry = Entry(
        id=command.audit_id, by=command.caller.principal, action="locks.break", kind="lock", target=command.name,
        reason=command.reason, request_id=command.caller.request_id,
        details={"fence": row.fence, "owner": row.owner},
    )  # fmt: skip
    record(tx, [entry])


def verify(tx: Tx, commands: Sequence[Verify]) -> list[Verified]:
    """For each fence, whether its holder is the one who holds the lock at this moment."""
    rows = {bytes(row.digest): row for row in store.select_locks(tx, sorted({one.digest for one in commands}))}
    unknown = select_floor(tx, FLOOR) if len(rows) < len({one.digest for one in commands}) else 0
    answers = []
    for command in commands:
        row = rows.get(command.digest)
        if row is None:
            answers.append(Verified(current=False, fence=unknown, held=False))
        else:
            held = row.state == State.HELD and row.due_at > tx.now
            answers.append(Verified(current=held and row.fence == command.fence, fence=row.fence, held=held))
    return answers
