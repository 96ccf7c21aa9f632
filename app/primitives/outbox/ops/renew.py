"""Renew: a holder says that it is alive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app import reservations
from app.db.tx import Tx
from app.errors import Refusal, not_found
from app.primitives.outbox.model.commands import Beat, Renew, Renewed
from app.primitives.outbox.model.states import State
from app.primitives.outbox.ops import flows
from app.primitives.outbox.ops.refusals import lost, out_of_pattern
from app.primitives.outbox.store import held as store
from app.primitives.outbox.store import work


def renew(tx: Tx, commands: Sequence[Renew]) -> list[list[Renewed | Refusal]]:
    """Extend leases to now + the asked time, and never back.

    Guarantee: only with the token of the newest, unexpired reservation; nothing else changes. Repeatable. Race: a settlement
    or a sweep that commits first wins, and this answers `reservation_lost`.
    """
    rows, refused = _look(tx, commands)
    ends: dict[bytes, int] = {}
    for command, judged in zip(commands, refused, strict=True):
        for beat, refusal in zip(command.beats, judged, strict=True):
            if refusal is None:
                ends[beat.id] = max(ends.get(beat.id, rows[beat.id].due_at), tx.now + _lease(beat, rows[beat.id]))
    if ends:
        fences = {one: rows[one].fence for one in ends}
        if store.update_renewed(tx, fences, [rows[one].grant_digest for one in ends], ends) != len(ends):
            rows, refused = _look(tx, commands)  # others were quicker at some
            ends = {one: row.due_at for one, row in rows.items()}
    return [
        [
            Renewed(beat.id, ends[beat.id]) if refusal is None else refusal
            for beat, refusal in zip(command.beats, judged, strict=True)
        ]
        for command, judged in zip(commands, refused, strict=True)
    ]


def _lease(beat: Beat, row: Any) -> int:
    """What was asked for; a beat that asks for nothing gets what the claim asked for."""
    return int(row.lease_micros if beat.lease is None else beat.lease)


def _look(tx: Tx, commands: Sequence[Renew]) -> tuple[dict[bytes, Any], list[list[Refusal | None]]]:
    ids = sorted({beat.id for command in commands for beat in command.beats})
    rows, names = {bytes(row.id): row for row in work.select_messages(tx, ids)}, flows.Names(tx)
    return rows, [
        [_judge(tx, command, beat, rows.get(beat.id), names) for beat in command.beats] for command in commands
    ]


def _judge(tx: Tx, command: Renew, beat: Beat, row: Any, names: flows.Names) -> Refusal | None:
    """Why this token holds nothing (any more), or None."""
    if row is None:
        return not_found("message")
    if not command.caller.principal.allows(names[row.flow_id][0]):
        return out_of_pattern()
    token = reservations.present(beat.token)
    if token is None:
        return lost("unknown_token", row.fence)
    if not reservations.matches(tx.host.token_key, token, row.grant_digest, bytes(row.id), row.fence):
        ended = any(
            reservations.matches(tx.host.token_key, token, event.grant_digest, bytes(row.id), event.fence)
            for event in store.select_events_of_grants(tx, [bytes(row.id)], [token.digest])
        )
        return lost("superseded" if ended else "unknown_token", row.fence)
    if row.state != State.SENDING:
        return lost("settled" if row.settlement_digest is not None else "expired", row.fence)
    if row.due_at <= tx.now:
        memory = flows.here(tx)
        tx.on_commit(lambda: memory.abandon_in(0))
        return lost("expired", row.fence)
    return None
