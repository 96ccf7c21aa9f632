"""Renew: a worker says that it is alive, and learns whether it should go on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from app import reservations
from app.clock import MICROS
from app.db.tx import Tx
from app.errors import Refusal, not_found
from app.primitives.jobs.model import Beat, Renew, Renewed, State
from app.primitives.jobs.ops import flows
from app.primitives.jobs.ops.refusals import lost, out_of_pattern
from app.primitives.jobs.store import held as store
from app.primitives.jobs.store import work


def renew(tx: Tx, commands: Sequence[Renew]) -> list[list[Renewed | Refusal]]:
    """Extend leases to now + the asked time, at most to the end of the attempt's own ceiling.

    Guarantee: only with the token of the newest, unexpired reservation; nothing else of the job changes. Repeatable. Race:
    a settlement or a sweep that commits first wins, and this answers `reservation_lost`.
    """
    beats = [beat for command in commands for beat in command.beats]
    by_lease: dict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
    for beat in beats:
        token = reservations.present(beat.token)
        if token is not None:
            by_lease[beat.lease].append((beat.id, token.digest))
    for lease, pairs in sorted(by_lease.items()):
        store.update_renewed(tx, sorted({job_id for job_id, _ in pairs}), sorted({grant for _, grant in pairs}), lease)
    rows = {row.id: row for row in work.select_jobs(tx, sorted({beat.id for beat in beats}))}
    names = flows.names(tx, {row.flow_id for row in rows.values()})
    asked = [row.id for row in rows.values() if row.cancel_requested_at is not None]
    reasons = {row.job_id: row.message for row in store.select_cancel_reasons(tx, asked)} if asked else {}
    outcomes = [[_judge(tx, command, beat, rows, names, reasons) for beat in command.beats] for command in commands]
    _keep_progress(tx, commands, outcomes)
    _tell(tx, commands, outcomes, rows, names)
    return outcomes


def _judge(
    tx: Tx,
    command: Renew,
    beat: Beat,
    rows: dict[bytes, Any],
    names: dict[int, Any],
    reasons: dict[bytes, str],
) -> Renewed | Refusal:
    row = rows.get(beat.id)
    if row is None:
        return not_found("job")
    if not command.caller.principal.allows(names[row.flow_id][0]):
        return out_of_pattern()
    token = reservations.present(beat.token)
    if token is None:
        return lost("unknown_token", row.fence)
    if not reservations.matches(tx.host.token_key, token, row.grant_digest, row.id, row.fence):
        ended = store.select_events_of_grants(tx, [row.id], [token.digest])
        return lost("superseded" if ended else "unknown_token", row.fence)
    if row.state != State.RUNNING:
        if row.settlement_digest is not None:
            return lost("settled", row.fence)
        return lost("cancelled" if row.state == State.CANCELLED else "expired", row.fence)
    if row.due_at <= tx.now:
        tx.on_commit(lambda: flows.here(tx).abandon_in(0))
        return lost("expired", row.fence)
    asked = row.cancel_requested_at is not None
    return Renewed(row.id, row.due_at, asked, reasons.get(row.id) if asked else None)


def _keep_progress(tx: Tx, commands: Sequence[Renew], outcomes: list[list[Renewed | Refusal]]) -> None:
    newest: dict[bytes, bytes] = {}
    for command, answers in zip(commands, outcomes, strict=True):
        for beat, answer in zip(command.beats, answers, strict=True):
            if isinstance(answer, Renewed) and beat.progress is not None:
                newest[beat.id] = beat.progress
    if newest:
        store.upsert_progress(
            tx,
            [
                {"job_id": job_id, "progress": progress, "updated_at": tx.now}
                for job_id, progress in sorted(newest.items())
            ],
        )


def _tell(
    tx: Tx,
    commands: Sequence[Renew],
    outcomes: list[list[Renewed | Refusal]],
    rows: dict[bytes, Any],
    names: dict[int, Any],
) -> None:
    memory, now = flows.here(tx), tx.now
    good = [answer for answers in outcomes for answer in answers if isinstance(answer, Renewed)]

    def told() -> None:
        for answer in good:
            memory.beaten(now, rows[answer.id].worker, names[rows[answer.id].flow_id][0])
        if good:
            memory.abandon_in((min(answer.expires_at for answer in good) - now) / MICROS)

    tx.on_commit(told)
