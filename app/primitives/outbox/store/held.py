"""SQL of what is held: settle and renew. Every UPDATE repeats its condition and gives the number of rows that it matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import bindparam, case, delete, insert, select, update

from app.db.dialects.base import Dialect
from app.db.tx import Tx
from app.db.values import alike, assigned, values_for
from app.primitives.outbox.model.states import Kind, State
from app.primitives.outbox.store.values import HOT, IDS, Rows, by_id, live, per_row
from app.primitives.outbox.tables import outbox_contents, outbox_events, outbox_keys, outbox_places
from app.primitives.outbox.tables import outbox_messages as messages

_WHOLE = by_id(select(*HOT))
_MOVED = (
    "state", "due_at", "available_at", "attempt", "lease_losses", "releases", "ended_at", "category", "reference",
    "settlement_digest", "ended_request_id",
)  # fmt: skip


def lock_messages(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """Lock these messages by primary key, ascending, waiting for whoever holds them."""
    return tx.conn.execute(tx.dialect.lock(_WHOLE), {"ids": list(ids)}).all()


def lock_free_messages(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """The same for those that nobody else holds."""
    return tx.conn.execute(tx.dialect.lock_free(_WHOLE), {"ids": list(ids)}).all()


def update_sent(
    tx: Tx,
    grants: Sequence[bytes],
    settlements: Mapping[bytes, bytes],
    references: Mapping[bytes, str | None],
    requests: Mapping[bytes, str],
    purge: Mapping[bytes, int],
) -> int:
    """sending -> sent, for the newest unexpired reservation only; one statement for each distinct content if there are few.
    Keys of the mappings: message ids.
    """
    written = 0
    for ids in alike(settlements, references, requests, purge):
        own_digest, digest = values_for("settlement_digest", {one: settlements[one] for one in ids})
        own_reference, reference = values_for("reference", {one: references[one] for one in ids})
        own_request, request = values_for("ended_request_id", {one: requests[one] for one in ids})
        own_purge, due = values_for("due_at", {one: purge[one] for one in ids})
        change = _sending(tx.dialect, tx.shift, own_digest, own_reference, own_request, own_purge)
        filled = {"ids": ids, "grants": list(set(grants)), "now": tx.now, **digest, **reference, **request, **due}
        written += tx.conn.execute(change, filled).rowcount
    return written


@lru_cache(maxsize=256)
def _sending(dialect: Dialect, shift: int, digest: int, reference: int, request: int, purge: int) -> Any:
    return (
        update(messages)
        .where(
            messages.c.id.in_(IDS),
            messages.c.state == State.SENDING,
            messages.c.grant_digest.in_(bindparam("grants", expanding=True)),
            live(dialect, shift),
        )
        .values(
            state=State.SENT,
            ended_at=bindparam("now", type_=messages.c.ended_at.type),
            due_at=per_row(messages.c.due_at, purge),
            settlement_digest=per_row(messages.c.settlement_digest, digest),
            reference=per_row(messages.c.reference, reference),
            ended_request_id=per_row(messages.c.ended_request_id, request),
        )
    )


def update_settled(tx: Tx, moves: Sequence[Mapping[str, Any]]) -> int:
    """sending -> whatever each move says, for the newest unexpired reservation only (`b_id`, `b_fence`, `b_grant`)."""
    change = _move().where(
        messages.c.state == State.SENDING,
        messages.c.grant_digest == bindparam("b_grant"),
        live(tx.dialect, tx.shift),
    )
    return tx.conn.execute(change, list(moves)).rowcount


def update_abandoned(tx: Tx, moves: Sequence[Mapping[str, Any]]) -> int:
    """sending -> whatever each move says, for a reservation whose lease has ended by the database's own clock."""
    change = _move().where(messages.c.state == State.SENDING, ~live(tx.dialect, tx.shift))
    return tx.conn.execute(change, _without_grant(moves)).rowcount


def update_moved(tx: Tx, state: State, moves: Sequence[Mapping[str, Any]]) -> int:
    """`state` -> whatever each move says, whoever may hold what; for verdicts, requeues and late answers."""
    return tx.conn.execute(_move().where(messages.c.state == int(state)), _without_grant(moves)).rowcount


def _without_grant(moves: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in move.items() if key != "b_grant"} for move in moves]


def _move() -> Any:
    return (
        update(messages)
        .where(messages.c.id == bindparam("b_id"), messages.c.fence == bindparam("b_fence"))
        .values({name: bindparam(f"b_{name}", type_=messages.c[name].type) for name in _MOVED})
    )


def select_sending(tx: Tx, ids: Sequence[bytes]) -> set[bytes]:
    """Which of these messages are still held: a settlement that matched no row found its lease ended."""
    query = select(messages.c.id).where(messages.c.id.in_(IDS), messages.c.state == State.SENDING)
    return {bytes(row.id) for row in tx.conn.execute(query, {"ids": list(ids)})}


def update_renewed(tx: Tx, fences: Mapping[bytes, int], grants: Sequence[bytes], ends: Mapping[bytes, int]) -> int:
    """Extend these reservations (message id -> fence) to their ends, and never back."""
    until = assigned(ends, messages.c.due_at, by=messages.c.id)
    change = (
        update(messages)
        .where(
            messages.c.id.in_(IDS),
            messages.c.state == State.SENDING,
            messages.c.fence == assigned(fences, messages.c.fence, by=messages.c.id),
            messages.c.grant_digest.in_(bindparam("grants", expanding=True)),
            live(tx.dialect, tx.shift),
        )
        .values(due_at=case((until > messages.c.due_at, until), else_=messages.c.due_at))
    )
    return tx.conn.execute(change, {"ids": list(fences), "grants": list(set(grants))}).rowcount


def insert_events(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    tx.conn.execute(insert(outbox_events), list(rows))


_FINDINGS = (Kind.RECONCILED.value, Kind.UNDECIDED.value)


def select_events_of_grants(tx: Tx, ids: Sequence[bytes], grants: Sequence[bytes], *, findings: bool = False) -> Rows:
    """How earlier reservations of these messages ended, oldest first; with `findings`, those of their doubts."""
    kind = outbox_events.c.kind
    query = (
        select(outbox_events)
        .where(
            outbox_events.c.message_id.in_(IDS),
            outbox_events.c.grant_digest.in_(bindparam("grants", expanding=True)),
            kind.in_(_FINDINGS) if findings else kind.not_in(_FINDINGS),
        )
        .order_by(outbox_events.c.message_id, outbox_events.c.id)
    )
    return tx.conn.execute(query, {"ids": list(ids), "grants": list(grants)}).all()


# -- messages that go, and what is left of them ----------------------------------------------------------------------------


def select_keys_of(tx: Tx, ids: Sequence[bytes]) -> Rows:
    """The keys of messages that are gone; by the keys' index over messages."""
    query = select(outbox_keys).where(outbox_keys.c.message_id.in_(IDS), outbox_keys.c.purge_at.is_not(None))
    return tx.conn.execute(query, {"ids": list(ids)}).all()


def update_keys_left(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """What is kept of messages that are deleted as they are sent (`b_message_id`, and what replays are answered from)."""
    names = ("purge_at", "ended_at", "attempt", "fence", "grant_digest", "settlement_digest", "reference")
    change = (
        update(outbox_keys)
        .where(outbox_keys.c.message_id == bindparam("b_message_id"))
        .values({name: bindparam(f"b_{name}", type_=outbox_keys.c[name].type) for name in names})
    )
    tx.conn.execute(change, list(rows))


def delete_messages(tx: Tx, ids: Sequence[bytes], *, keys: bool) -> None:
    """Everything there is of these messages, the hot row last; their keys too, if so said."""
    columns: list[Any] = [outbox_contents.c.message_id, outbox_places.c.message_id, outbox_events.c.message_id]
    if keys:
        columns.append(outbox_keys.c.message_id)
    for column in (*columns, messages.c.id):
        tx.conn.execute(delete(column.table).where(column.in_(IDS)), {"ids": list(ids)})
