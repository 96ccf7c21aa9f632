"""Verdicts: somebody has found out what became of an unknown key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from app.db.tx import Tx
from app.errors import STATE_CONFLICT, VERDICT_CONFLICT, Refusal, not_found
from app.primitives.audit.ops import Entry, record
from app.primitives.idempotency import store
from app.primitives.idempotency.model import Reconcile, Settled, State, Verdict
from app.primitives.idempotency.ops.lapse import lapsed
from app.primitives.idempotency.ops.told import tell

_BECOMES = {Verdict.COMPLETED: State.COMPLETED, Verdict.REOPEN: State.OPEN, Verdict.FAILED: State.FAILED}
BY_VERDICT = "verdict"  # the category of a key that a verdict has failed


def reconcile(tx: Tx, commands: Sequence[Reconcile]) -> list[Settled | Refusal]:
    """unknown -> completed with its result, failed, or open for another attempt.

    Guarantee: the first verdict stands and is audited with its evidence; the same again is `replayed`, another is
    `verdict_conflict`. A key whose owner was lost a moment ago is judged as such first. Raises: as values also `not_found`,
    `state_conflict`.
    """
    rows = {bytes(row.digest): row for row in store.lock_keys(tx, sorted({one.key_digest for one in commands}))}
    lost = [row for row in rows.values() if row.state == State.RUNNING and row.due_at <= tx.now]
    if lost:
        lapsed(tx, lost)
        rows = {bytes(row.digest): row for row in store.lock_keys(tx, sorted(rows))}
    answers = []
    for command in commands:
        answers.append(_reconcile(tx, command, rows.get(command.key_digest)))
        if len(commands) > 1:  # another verdict in this unit must see this one
            rows |= {bytes(row.digest): row for row in store.lock_keys(tx, [command.key_digest])}
    return answers


def _reconcile(tx: Tx, command: Reconcile, row: Any) -> Settled | Refusal:
    if row is None:
        return not_found("key")
    state = State(row.state)
    if state is State.UNKNOWN:
        return _decide(tx, command, row)
    if row.verdict_digest is None:
        detail = f"The key is {state.text}. Only an unknown key takes a verdict."
        return Refusal(STATE_CONFLICT, detail, extra={"state": state.text})
    if bytes(row.verdict_digest) != command.digest:
        return Refusal(VERDICT_CONFLICT, "Another verdict stands.", extra={"state": state.text})
    return Settled(_BECOMES[command.verdict], row.attempt, row.fence, replayed=not _ours(tx, command))


def _ours(tx: Tx, command: Reconcile) -> bool:
    """An earlier try of this very unit decided it: its COMMIT got through, and only the answer was lost."""
    return tx.repeated and tx.memo.get(("verdict", command.key_digest)) == command.audit_id


def _decide(tx: Tx, command: Reconcile, row: Any) -> Settled:
    state = _BECOMES[command.verdict]
    tx.memo["verdict", command.key_digest] = command.audit_id
    store.update_decided(
        tx,
        command.key_digest,
        {
            "state": int(state),
            "due_at": tx.now + row.retention_micros,
            "verdict_digest": command.digest,
            "category": BY_VERDICT if state is State.FAILED else None,
        },
    )
    store.delete_results(tx, [command.key_digest])
    if state is State.COMPLETED:
        told = {"digest": command.key_digest, "result": command.result, "message": None}
        store.insert_results(tx, [told])
    details = {
        "key_digest": command.key_digest.hex(),
        "verdict": command.verdict.value,
        "evidence": msgspec.Raw(command.evidence),
    }
    record(tx, [Entry(
        id=command.audit_id, by=command.caller.principal, action="idempotency.reconcile", kind="idempotency_key",
        target=command.scope, reason=None, request_id=command.caller.request_id, details=details,
    )])  # fmt: skip
    tell(tx, [command.key_digest], {"reconciled": 1})
    return Settled(state, row.attempt, row.fence)
