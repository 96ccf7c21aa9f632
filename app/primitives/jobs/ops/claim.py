"""Claim: available jobs are put into workers' hands, under one fresh grant for the whole transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from app import reservations
from app.clock import MICROS
from app.db.tx import Tx
from app.errors import Refusal
from app.primitives.jobs.model import Claim, Claimed, Figure, Flow, Granted
from app.primitives.jobs.model.terms import UNLIMITED
from app.primitives.jobs.ops import flows, keys
from app.primitives.jobs.ops.take import Order, lease_of, take
from app.primitives.jobs.store import work as store
from app.reservations import Grant

LOST_CLAIM_KEPT = 3600 * MICROS


def claim(tx: Tx, commands: Sequence[Claim]) -> list[Claimed | Refusal]:
    """available -> running for as many jobs as the claims ask for, the earliest claim first.

    Guarantee: each job goes to one claim, of a flow that it named. A repeated `claim_id` gets its grants again while they are
    held. Race: rows that another replica has locked are skipped; the UPDATE repeats the condition and is counted.
    """
    if tx.repeated and (done := _recall(tx, commands)) is not None:
        return done
    replays = _replays(tx, commands)
    grant = reservations.mint_grant()
    orders = take(tx, [(index, command) for index, command in enumerate(commands) if index not in replays], grant)
    keys.started(tx, (row for order in orders for row in order.got.values()))
    _remember_claims(tx, orders, grant)
    tx.memo["claim"] = (grant, {order.index: list(order.got) for order in orders})
    _tell(tx, commands, orders)
    contents = _contents(tx, [job_id for order in orders for job_id in order.got])
    answers = replays | {order.index: _answer(tx, order, grant, contents) for order in orders}
    return [answers[index] for index in range(len(commands))]


def peek(tx: Tx, queues: Sequence[str]) -> list[Flow]:
    """The flows of these queues that have work now. One that another replica made is remembered at once."""
    found = [(row.queue, row.type, row.schema_version) for row in store.select_busy_flows(tx, queues)]
    if any(flows.here(tx).flow_id(flow) is None for flow in found):
        flows.refresh_memory(tx, None)
    return found


def _contents(tx: Tx, ids: list[bytes]) -> dict[bytes, Any]:
    return {row.job_id: row for row in store.select_contents(tx, ids)} if ids else {}


def _answer(tx: Tx, order: Order, grant: Grant, contents: dict[bytes, Any]) -> Claimed:
    names = flows.names(tx, {row.flow_id for row in order.got.values()})
    return Claimed(
        tuple(
            _granted(
                tx,
                names[row.flow_id],
                row,
                contents[job_id],
                grant,
                row.attempt + 1,
                row.fence + 1,
                tx.now + min(lease_of(tx, order.claim, row), row.timeout_micros),
            )
            for job_id, row in order.got.items()
        )
    )


def _granted(
    tx: Tx, flow: Flow, row: Any, content: Any, grant: Grant, attempt: int, fence: int, expires_at: int
) -> Granted:
    return Granted(
        id=row.id,
        flow=flow,
        payload=content.payload,
        priority=row.priority,
        attempt=attempt,
        max_attempts=None if row.max_attempts == UNLIMITED else row.max_attempts,
        timeout=row.timeout_micros,
        correlation_id=content.correlation_id,
        parent_operation_id=content.parent_operation_id,
        traceparent=content.traceparent,
        token=reservations.token(tx.host.token_key, grant, row.id, fence),
        fence=fence,
        expires_at=expires_at,
    )


def _held(tx: Tx, grant: Grant, ids: Sequence[bytes]) -> tuple[Granted, ...]:
    """What a grant of an earlier try or call still holds, in the order in which it was given."""
    rows = {row.id: row for row in store.select_granted(tx, [grant.digest], ids) if row.due_at > tx.now}
    contents = _contents(tx, list(rows))
    names = flows.names(tx, {row.flow_id for row in rows.values()})
    found = [rows[job_id] for job_id in ids if job_id in rows]
    return tuple(
        _granted(tx, names[row.flow_id], row, contents[row.id], grant, row.attempt, row.fence, row.due_at)
        for row in found
    )


# -- repeats ---------------------------------------------------------------------------------------------------------------


def _recall(tx: Tx, commands: Sequence[Claim]) -> list[Claimed | Refusal] | None:
    """An earlier try of this unit may have been committed: if any of its jobs carries its grant, all of it was."""
    if "claim" not in tx.memo:
        return None
    grant, by_order = tx.memo["claim"]
    ids = [job_id for got in by_order.values() for job_id in got]
    if not ids or not store.select_granted(tx, [grant.digest], ids):
        return None
    answers = _replays(tx, commands) | {index: Claimed(_held(tx, grant, ids)) for index, ids in by_order.items()}
    return [answers[index] for index in range(len(commands))]


def _replays(tx: Tx, commands: Sequence[Claim]) -> dict[int, Claimed | Refusal]:
    """Answers of repeated claims, by place. A claim id whose grants have all ended is free for new ones. The same claim
    twice in one unit is one claim: the second is given nothing.
    """
    known: dict[bytes, int] = {}
    found: dict[int, Claimed | Refusal] = {}
    for index, command in enumerate(commands):
        if command.claim_id is not None and known.setdefault(_digest(command), index) != index:
            found[index] = Claimed()
    spent: list[bytes] = []
    for row in store.lock_claims(tx, sorted(known)) if known else ():
        command = commands[known[row.digest]]
        grant = reservations.unseal(
            tx.host.token_key, row.sealed, row.grant_digest, command.caller.principal.key_id, command.claim_id or ""
        )
        ids = [row.job_ids[place : place + 16] for place in range(0, len(row.job_ids), 16)]
        held = _held(tx, grant, ids) if grant is not None else ()
        if held:
            found[known[row.digest]] = Claimed(held, replayed=True)
        else:
            spent.append(row.digest)
    if spent:
        store.delete_claims(tx, spent)
    return found


def _digest(command: Claim) -> bytes:
    return reservations.claim_digest(command.caller.principal.key_id, command.claim_id or "")


def _remember_claims(tx: Tx, orders: list[Order], grant: Grant) -> None:
    rows = [
        {
            "digest": _digest(order.claim),
            "sealed": reservations.seal(
                tx.host.token_key, grant, order.claim.caller.principal.key_id, order.claim.claim_id
            ),
            "grant_digest": grant.digest,
            "job_ids": b"".join(order.got),
            "purge_at": tx.now + _longest(order),
        }
        for order in orders
        if order.claim.claim_id is not None and order.got
    ]
    if rows:
        store.insert_claim(tx, sorted(rows, key=lambda row: bytes(row["digest"])))


def _longest(order: Order) -> int:
    """A grant may be renewed up to its jobs' own ceilings."""
    longest: int = max(row.timeout_micros for row in order.got.values())
    return longest + LOST_CLAIM_KEPT


def _tell(tx: Tx, commands: Sequence[Claim], orders: list[Order]) -> None:
    memory, now = flows.here(tx), tx.now
    taken: dict[tuple[int, Figure], int] = defaultdict(int)
    for order in orders:
        for row in order.got.values():
            taken[row.flow_id, Figure.CLAIMED] += 1
    ends = [min(lease_of(tx, order.claim, row), row.timeout_micros) for order in orders for row in order.got.values()]

    def told() -> None:
        for command in commands:
            memory.claimed(now, command.worker, command.queues, command.handlers)
        memory.count(now, taken)
        if ends:
            memory.abandon_in(min(ends) / MICROS)

    tx.on_commit(told)
