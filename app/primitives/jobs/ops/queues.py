"""Queues: read, set, pause, resume. A queue comes to be with its first job, or here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.access import Principal
from app.db.tx import Tx
from app.errors import Refusal, not_found
from app.primitives.audit.ops import Entry, record
from app.primitives.jobs.model import Caller, Flow, QueueView, State
from app.primitives.jobs.ops import flows
from app.primitives.jobs.ops.refusals import out_of_pattern
from app.primitives.jobs.store import control as store
from app.primitives.jobs.store import figures, lists


@dataclass(frozen=True, slots=True)
class Get:
    name: str
    principal: Principal


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of the queues that the key's patterns allow, by name, from the one after `after` on."""

    principal: Principal
    limit: int = 50
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """All that can be set of a queue; None unsets."""

    name: str
    caller: Caller
    max_depth: int | None = None
    retention_seconds: int | None = None
    description: str = ""
    contract_policy: str | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause a queue, or let it go on (`paused` False)."""

    name: str
    caller: Caller
    reason: str
    paused: bool = True


@dataclass(frozen=True, slots=True)
class Changed:
    """The queue after the change. `replayed`: it was so before, and nothing was changed now."""

    queue: QueueView
    replayed: bool = False


def get(tx: Tx, command: Get) -> QueueView | Refusal:
    """One queue with its counts by state. Raises: as values `not_found`, `forbidden`."""
    if not command.principal.allows(command.name):
        return out_of_pattern()
    row = lists.select_queue(tx, command.name)
    return not_found("queue") if row is None else _views(tx, [row])[0]


def list_queues(tx: Tx, command: Listing) -> list[QueueView]:
    """One queue more than the limit if there is one, by name."""
    allows, most = command.principal.allows, command.limit + 1
    rows = lists.select_queues(tx, command.after, None if command.principal.patterns else most)
    return _views(tx, [row for row in rows if allows(row.name)][:most])


def put(tx: Tx, commands: Sequence[Put]) -> list[QueueView]:
    """Set the limit, the retention and the description of a queue, making it if it is not there. What is None is unset.

    Guarantee: repeatable; a pause is left as it is. This process's memory of the limits is set with the commit.
    """
    flows.make_queues(tx, sorted({command.name for command in commands}))
    _lock(tx, commands)
    memory = flows.here(tx)
    for index, command in enumerate(commands):
        values = {
            "max_depth": command.max_depth,
            "retention_seconds": command.retention_seconds,
            "description": command.description,
            "contract_policy": command.contract_policy,
        }
        store.update_queue(tx, command.name, values)
        entry = _entry(command, "put_queue", None, values)
        record(tx, [replace(entry, id=tx.memo.setdefault(("audit", index), entry.id))])
    limits = {
        command.name: (command.max_depth, command.retention_seconds, command.contract_policy) for command in commands
    }

    def told() -> None:
        memory.learn([], limits)
        memory.report = None

    tx.on_commit(told)
    return [_views(tx, [lists.select_queue(tx, command.name)])[0] for command in commands]


def pause(tx: Tx, commands: Sequence[Pause]) -> list[Changed | Refusal]:
    """Pause queues, or let them go on. Claims take nothing from a paused queue; what runs there goes on.

    Guarantee: pausing a paused queue keeps its first moment and reason (`replayed`), and so for resuming. Raises: as a value
    `not_found`. Once committed, claims that wait for a queue that goes on are tried at once.
    """
    rows = _lock(tx, commands)
    outcomes: list[Changed | Refusal] = []
    for command in commands:
        if rows[command.name] is None:
            outcomes.append(not_found("queue"))
            continue
        changed = _pause(tx, command)
        if changed:
            verb = "pause_queue" if command.paused else "resume_queue"
            record(tx, [_entry(command, verb, command.reason, {})])
        view = _views(tx, [lists.select_queue(tx, command.name)])[0]
        outcomes.append(Changed(view, replayed=not changed and not _is_ours(tx, command)))
    tx.on_commit(_told(tx, [command.name for command in commands if not command.paused]))
    return outcomes


def _lock(tx: Tx, commands: Sequence[Put] | Sequence[Pause]) -> dict[str, Any]:
    # in one order everywhere, so that two units that change several queues wait for each other and never in a ring
    return {name: store.lock_queue(tx, name) for name in sorted({command.name for command in commands})}


def _pause(tx: Tx, command: Pause) -> bool:
    change = _pausing if command.paused else _resuming
    changed = change(tx, command) == 1
    if changed:
        tx.memo["paused", command.name, command.paused] = command.caller.request_id
    return changed


def _pausing(tx: Tx, command: Pause) -> int:
    return store.update_paused(tx, command.name, command.reason)


def _resuming(tx: Tx, command: Pause) -> int:
    return store.update_resumed(tx, command.name)


def _is_ours(tx: Tx, command: Pause) -> bool:
    """An earlier try of this very unit did it, and its COMMIT got no answer."""
    known = tx.memo.get(("paused", command.name, command.paused))
    return tx.repeated and known == command.caller.request_id


def _told(tx: Tx, resumed: Sequence[str]) -> Callable[[], None]:
    memory = flows.here(tx)
    ready: dict[Flow, int] = {}
    rows = [row for row in lists.select_all_flows(tx) if row.queue in resumed]
    names = {row.id: (row.queue, row.type, row.schema_version) for row in rows}
    for row in figures.select_counts_of(tx, list(names)) if names else ():
        if row.state == State.AVAILABLE:
            ready[names[row.flow_id]] = row.jobs

    def told() -> None:
        memory.report = None
        if ready:
            memory.wake(ready)

    return told


def _entry(command: Put | Pause, verb: str, reason: str | None, details: dict[str, Any]) -> Entry:
    caller = command.caller
    return Entry(caller.principal, f"jobs.{verb}", "queue", command.name, reason, caller.request_id, details)


def _views(tx: Tx, rows: Sequence[Any]) -> list[QueueView]:
    wanted = {row.name for row in rows}
    queue_of = {row.id: row.queue for row in lists.select_all_flows(tx) if row.queue in wanted}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in figures.select_counts_of(tx, list(queue_of)) if queue_of else ():
        counts[queue_of[row.flow_id]][State(row.state).text] += row.jobs
    return [
        QueueView(
            name=row.name,
            paused_at=row.paused_at,
            paused_reason=row.paused_reason,
            max_depth=row.max_depth,
            retention_seconds=row.retention_seconds,
            contract_policy=row.contract_policy,
            description=row.description,
            created_at=row.created_at,
            updated_at=row.updated_at,
            counts=counts[row.name],
        )
        for row in rows
    ]
