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
    """Extend leases to now + the asked time, at most to the end of the attempt's own ceiling, and never back.

    Guarantee: only with the token of the newest, unexpired reservation; nothing else of the job changes, and nothing at all
    of a job whose token was not sent. Repeatable. Race: a settlement or a sweep that commits first wins, and this answers
    `reservation_lost`.
    """
    rows, names = _look(tx, commands)
    refused = _refused(tx, commands, rows, names)
    until = _wanted(tx, commands, rows, refused)
    if _extend(tx, rows, until):
        ends = {job_id: max(rows[job_id].due_at, min(_ceiling(rows[job_id]), end)) for job_id, end in until.items()}
    else:
        rows, names = _look(tx, commands)  # others were quicker at some
        refused = _refused(tx, commands, rows, names)
        live = store.select_live(tx, list(rows)) if rows else set()
        ends = {row.id: row.due_at for row in rows.values() if row.id in live}
    outcomes = _answers(tx, commands, rows, refused, ends)
    _keep_progress(tx, commands, outcomes)
    _tell(tx, commands, outcomes, rows, names)
    return outcomes


def _look(tx: Tx, commands: Sequence[Renew]) -> tuple[dict[bytes, Any], dict[int, Any]]:
    rows = {
        row.id: row for row in work.select_jobs(tx, sorted({beat.id for command in commands for beat in command.beats}))
    }
    return rows, flows.names(tx, {row.flow_id for row in rows.values()})


def _ceiling(row: Any) -> int:
    return int(row.claimed_at + row.timeout_micros)


def _lease(beat: Beat, row: Any) -> int:
    """What was asked for; a beat that asks for nothing gets what the claim asked for."""
    return int(row.lease_micros if beat.lease is None else beat.lease)


def _wanted(
    tx: Tx, commands: Sequence[Renew], rows: dict[bytes, Any], refused: list[list[Refusal | None]]
) -> dict[bytes, int]:
    """Until when each job is to be held: the longest that was asked for with its token."""
    until: dict[bytes, int] = {}
    for command, judged in zip(commands, refused, strict=True):
        for beat, refusal in zip(command.beats, judged, strict=True):
            if refusal is None:
                until[beat.id] = max(until.get(beat.id, 0), tx.now + _lease(beat, rows[beat.id]))
    return until


def _extend(tx: Tx, rows: dict[bytes, Any], until: dict[bytes, int]) -> bool:
    """Write; gives whether every reservation was still as it had been read."""
    together: dict[int, list[Any]] = defaultdict(list)
    for job_id, end in until.items():
        together[end].append(rows[job_id])
    written = sum(
        store.update_renewed(tx, {row.id: row.fence for row in some}, [row.grant_digest for row in some], end)
        for end, some in sorted(together.items())
    )
    return written == len(until)


def _refused(
    tx: Tx,
    commands: Sequence[Renew],
    rows: dict[bytes, Any],
    names: dict[int, Any],
) -> list[list[Refusal | None]]:
    return [[_judge(tx, command, beat, rows, names) for beat in command.beats] for command in commands]


def _judge(tx: Tx, command: Renew, beat: Beat, rows: dict[bytes, Any], names: dict[int, Any]) -> Refusal | None:
    """Why this token holds nothing (any more), or None."""
    row = rows.get(beat.id)
    if row is None:
        return not_found("job")
    if not command.caller.principal.allows(names[row.flow_id][0]):
        return out_of_pattern()
    token = reservations.present(beat.token)
    if token is None:
        return lost("unknown_token", row.fence)
    if not reservations.matches(tx.host.token_key, token, row.grant_digest, row.id, row.fence):
        ended = any(
            reservations.matches(tx.host.token_key, token, event.grant_digest, row.id, event.fence)
            for event in store.select_events_of_grants(tx, [row.id], [token.digest])
        )
        return lost("superseded" if ended else "unknown_token", row.fence)
    if row.state != State.RUNNING:
        if row.settlement_digest is not None:
            return lost("settled", row.fence)
        return lost("cancelled" if row.state == State.CANCELLED else "expired", row.fence)
    if row.due_at <= tx.now:
        tx.on_commit(lambda: flows.here(tx).abandon_in(0))
        return lost("expired", row.fence)
    return None


def _answers(
    tx: Tx,
    commands: Sequence[Renew],
    rows: dict[bytes, Any],
    refused: list[list[Refusal | None]],
    ends: dict[bytes, int],
) -> list[list[Renewed | Refusal]]:
    asked = [row.id for row in rows.values() if row.cancel_requested_at is not None]
    reasons = {row.job_id: row.message for row in store.select_cancel_reasons(tx, asked)} if asked else {}

    def answer(beat: Beat, refusal: Refusal | None) -> Renewed | Refusal:
        if refusal is not None:
            return refusal
        row = rows[beat.id]
        if row.id not in ends:  # it had run out by the database's own clock
            return lost("expired", row.fence)
        asked_to = row.cancel_requested_at is not None
        return Renewed(row.id, ends[row.id], asked_to, reasons.get(row.id) if asked_to else None)

    return [
        [answer(beat, refusal) for beat, refusal in zip(command.beats, judged, strict=True)]
        for command, judged in zip(commands, refused, strict=True)
    ]


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
