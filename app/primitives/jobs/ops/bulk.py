"""Change many jobs by a filter, some at a time: every step is a transaction of its own, and may be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from app.clock import to_text
from app.db.tx import Tx
from app.primitives.audit.ops import Entry, record
from app.primitives.jobs.model import Caller, Filter, State, new_id
from app.primitives.jobs.ops import flows, keys, lines
from app.primitives.jobs.ops.changes import Changes
from app.primitives.jobs.ops.inspect import narrow_of
from app.primitives.jobs.store import control as store
from app.primitives.jobs.store import due

STEP = 500


class Action(StrEnum):
    """What can be done to many jobs at once. None of them ever touches an unknown job."""

    CANCEL = "cancel"
    RETRY = "retry"
    PURGE = "purge"


@dataclass(frozen=True, slots=True)
class Bulk:
    """One step of a bulk action.

    `left`: how many may still be changed. `before`: the moment of the first step; jobs that came into question later are left
    alone, so that the steps come to an end. `matched`, `changed`: what the steps before have done, for the audit. `over`: the
    last step, which changes nothing.
    """

    action: Action
    filter: Filter
    caller: Caller
    reason: str
    left: int
    dry_run: bool = False
    before: int | None = None
    matched: int = 0
    changed: int = 0
    over: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What the action has done so far. `more`: whether another step may find jobs; `before` belongs into it."""

    matched: int
    changed: int
    more: bool
    before: int


def change(tx: Tx, commands: Sequence[Bulk]) -> list[Step]:
    """Change up to `STEP` of the jobs that the filter fits, that the key's patterns allow and that the action can change.

    cancel: scheduled, available -> cancelled; running jobs are asked to stop. retry: dead, cancelled -> available. purge:
    succeeded, dead and cancelled jobs are forgotten, whatever their retention. Guarantee: the last step writes one entry into
    the audit, with the filter and the counts of all; a dry run counts and changes nothing. Race: jobs that changed after they
    were found are locked and looked at again before the write.
    """
    return [_change(tx, index, command) for index, command in enumerate(commands)]


def _change(tx: Tx, index: int, command: Bulk) -> Step:
    before = tx.now if command.before is None else command.before
    step = _next(tx, index, command, before)
    if not step.more and not command.dry_run:
        caller = command.caller
        record(
            tx,
            [
                Entry(
                    caller.principal,
                    f"jobs.bulk_{command.action}",
                    "job",
                    command.filter.queue or "*",
                    command.reason,
                    caller.request_id,
                    {"filter": _told(command.filter), "matched": step.matched, "changed": step.changed},
                    id=tx.memo.setdefault(("audit", index), new_id()),
                )
            ],
        )
    return step


def _next(tx: Tx, index: int, command: Bulk, before: int) -> Step:
    narrow = narrow_of(tx, command.filter, command.caller.principal)
    if command.over or narrow.flow_ids == ():
        return Step(command.matched, command.changed, more=False, before=before)
    if command.dry_run:
        return Step(store.count_eligible(tx, command.action, narrow, command.left), 0, more=False, before=before)
    most = min(STEP, command.left)
    if tx.repeated and ("bulk", index) in tx.memo:
        # an earlier try may have been committed: no jobs but those that it has chosen
        ids, changed = tx.memo["bulk", index]
        changed = _apply(tx, command, ids) or changed
    else:
        ids = sorted(store.select_eligible(tx, command.action, narrow, before, most))
        changed = _apply(tx, command, ids)
        tx.memo["bulk", index] = ids, changed
    more = len(ids) == most and command.left > most
    return Step(command.matched + len(ids), command.changed + changed, more, before)


def _apply(tx: Tx, command: Bulk, ids: Sequence[bytes]) -> int:
    if command.action is Action.CANCEL:
        lines.lock_waiting(tx, ids)
    rows = [row for row in store.lock_jobs(tx, ids) if _can(command.action, row)] if ids else []
    if not rows:
        return 0
    if command.action is Action.PURGE:
        keys.forgotten(tx, rows)
        due.delete_jobs(tx, [row.id for row in rows])
        return len(rows)
    changes = Changes(tx, flows.names(tx, {row.flow_id for row in rows}))
    if command.action is Action.CANCEL:
        for row in rows:
            changes.cancel(row, command.caller, command.reason)
    else:
        changes.expect(rows)
        # one whose unique key another job holds is left out
        rows = [row for row in rows if changes.retry(row, command.caller, command.reason) is None]
    changes.write()
    return len(rows)


def _can(action: Action, row: Any) -> bool:
    return State(row.state) in store.ELIGIBLE[action] and (
        action is not Action.CANCEL or row.cancel_requested_at is None
    )


def _told(wanted: Filter) -> dict[str, Any]:
    """The filter as the audit keeps it."""
    told = {name: value for name, value in asdict(wanted).items() if value is not None}
    if wanted.state is not None:
        told["state"] = wanted.state.text
    return {name: to_text(value) if name.startswith("created_") else value for name, value in told.items()}
