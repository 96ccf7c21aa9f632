"""Namespaces: their policies, and clearing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.db.tx import Tx
from app.errors import Refusal, not_found
from app.primitives.audit.ops import Entry, record
from app.primitives.cache import store
from app.primitives.cache.model import Clear, Filter, Namespace, OnFailure, Policy, PutPolicy
from app.primitives.cache.ops.told import here


def put_policies(tx: Tx, commands: Sequence[PutPolicy]) -> list[Namespace]:
    """Set the policy of a namespace. A change of its version takes everything away that it holds, at once.

    Repeatable. A limit that is lower than before is met by the next writes and by a sweep, in small batches. Audited.
    """
    answers = []
    for command in sorted(enumerate(commands), key=lambda one: (one[1].namespace, one[0])):
        index, wanted = command
        answers.append((index, _put_policy(tx, wanted)))
    return [answer for _, answer in sorted(answers, key=lambda one: one[0])]


def _put_policy(tx: Tx, command: PutPolicy) -> Namespace:
    row = store.lock_namespaces(tx, [command.namespace])[command.namespace]
    policy = command.policy
    changed: dict[str, Any] = {
        "policy_at": tx.now,
        "ttl_micros": policy.ttl,
        "stale_micros": policy.stale,
        "version": policy.version,
        "on_failure": int(policy.on_failure),
        "max_entries": policy.max_entries,
        "max_bytes": policy.max_bytes,
    }
    if policy.version != row.version:
        changed |= _emptied(row)
    store.update_namespace(tx, command.namespace, changed)
    details = {"version": policy.version, "max_entries": policy.max_entries, "max_bytes": policy.max_bytes}
    _audit(tx, command, "cache.put_policy", details)
    return namespace_of(store.lock_namespaces(tx, [command.namespace])[command.namespace])


def _emptied(row: Any) -> dict[str, Any]:
    """Of a namespace that holds nothing from now on. Its fences go on."""
    return {"generation": row.generation + 1, "entries": 0, "bytes": 0}


def clear(tx: Tx, commands: Sequence[Clear]) -> list[int]:
    """Take everything away that these namespaces hold; gives how many values that were. One row is written for each,
    whatever it held; sweeps delete the rows later. Repeatable. Audited.
    """
    rows = store.lock_namespaces(tx, [command.namespace for command in commands])
    answers = []
    done: set[str] = set()
    for command in commands:
        row = rows[command.namespace]
        answers.append(0 if command.namespace in done else row.entries)
        if command.namespace not in done:
            store.update_namespace(tx, command.namespace, _emptied(row))
            done.add(command.namespace)
        _audit(tx, command, "cache.clear", {"entries": row.entries})
    memory = here(tx)
    tx.on_commit(lambda: memory.count({"cleared": len(done)}))
    return answers


def _audit(tx: Tx, command: PutPolicy | Clear, action: str, details: dict[str, Any]) -> None:
    entry = Entry(
        id=command.audit_id, by=command.caller.principal, action=action, kind="cache_namespace",
        target=command.namespace, reason=None, request_id=command.caller.request_id, details=details,
    )  # fmt: skip
    record(tx, [entry])


# -- reading ---------------------------------------------------------------------------------------------------------------


def get_policy(tx: Tx, name: str) -> Namespace | Refusal:
    row = store.select_namespace(tx, name)
    return not_found("cache policy") if row is None or row.policy_at is None else namespace_of(row)


def list_namespaces(tx: Tx, wanted: Filter) -> tuple[list[Namespace], str | None]:
    """By name, and the name to go on from; None on the last page. What the caller's key does not cover is left out."""
    rows = store.select_namespaces(tx, wanted.after, wanted.limit + 1)
    following = rows[wanted.limit - 1].name if len(rows) > wanted.limit else None
    return [namespace_of(row) for row in rows[: wanted.limit] if wanted.principal.allows(row.name)], following


def namespace_of(row: Any) -> Namespace:
    policy = None
    if row.policy_at is not None:
        policy = Policy(
            row.ttl_micros, row.stale_micros, row.version, OnFailure(row.on_failure), row.max_entries, row.max_bytes
        )
    return Namespace(row.name, policy, row.policy_at, row.entries, row.bytes)
