"""Claim: pending messages are put into holders' hands, under one fresh grant for the whole transaction."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from app import reservations
from app.clock import MICROS, micros
from app.db.tx import Tx
from app.errors import STATE_CONFLICT, Refusal
from app.primitives.outbox.model.commands import Claim, Claimed, Granted
from app.primitives.outbox.model.destinations import Destination, Mode
from app.primitives.outbox.model.states import Kind
from app.primitives.outbox.ops import adopt, destinations, flows
from app.primitives.outbox.store import flows as flow_store
from app.primitives.outbox.store import intake
from app.primitives.outbox.store import work as store
from app.reservations import Grant

LOST_CLAIM_KEPT = 86_400 * MICROS
PASSES = 3  # looks again where others were quicker
DEEPEST_LOOK = 512


@dataclass(slots=True)
class _Order:
    """One claim that is to be served, and what it got (id -> row before the claim). `index` is its place in the unit."""

    index: int
    claim: Claim
    flow_ids: list[list[int]] = field(default_factory=list)  # a list for each destination, in the caller's order
    got: dict[bytes, Any] = field(default_factory=dict)

    @property
    def open(self) -> int:
        return self.claim.limit - len(self.got)


def claim(tx: Tx, commands: Sequence[Claim]) -> list[Claimed | Refusal]:
    """pending -> sending for as many messages as the claims ask for, the earliest claim first.

    Guarantee: each message goes to one claim, of a destination and type that it named; of an ordering key one at a time. A
    repeated `claim_id` gets its grants again while they are held. What producers have committed by SQL is adopted first where
    there would be nothing. Race: rows that another replica has locked are skipped; the UPDATE repeats the condition and is
    counted. Raises: as a value `state_conflict` for a destination that the service itself delivers to.
    """
    if tx.repeated and (done := _recall(tx, commands)) is not None:
        return done
    known = destinations.read(tx, {name for command in commands for name in command.destinations})
    answers: dict[int, Claimed | Refusal] = _refused(commands, known) | _replays(tx, commands)
    grant = reservations.mint_grant()
    orders = [_Order(index, command) for index, command in enumerate(commands) if index not in answers]
    _take(tx, orders, grant)
    _remember_claims(tx, orders, grant)
    tx.memo["claim"] = (grant, {order.index: list(order.got) for order in orders})
    contents = _contents(tx, [one for order in orders for one in order.got])
    answers |= {order.index: _answer(tx, order, grant, contents, known) for order in orders}
    _tell(tx, orders)
    return [answers[index] for index in range(len(commands))]


def _refused(commands: Sequence[Claim], known: dict[str, Destination]) -> dict[int, Claimed | Refusal]:
    found: dict[int, Claimed | Refusal] = {}
    for index, command in enumerate(commands):
        served = [name for name in command.destinations if name in known and known[name].delivery.mode is Mode.HTTP]
        if served and not command.by_service:
            why = "The service itself delivers to a destination of this claim (`mode: http`); workers claim from the others."
            found[index] = Refusal(STATE_CONFLICT, why, extra={"destinations": served})
    return found


# -- taking ----------------------------------------------------------------------------------------------------------------


def _take(tx: Tx, orders: list[_Order], grant: Grant) -> None:
    memory = flows.here(tx)
    _route(orders, memory.flows_of)
    _fill(tx, orders, grant)
    empty = [order for order in orders if not order.got]
    if empty and (fresh := _learn(tx, empty)):
        _route(empty, lambda name: fresh.get(name, []))
        _fill(tx, empty, grant)


def _route(orders: list[_Order], flows_of: Callable[[str], list[tuple[int, str]]]) -> None:
    for order in orders:
        order.flow_ids = [
            [flow_id for flow_id, type_ in flows_of(name) if order.claim.handles(type_)]
            for name in order.claim.destinations
        ]


def _learn(tx: Tx, orders: list[_Order]) -> dict[str, list[tuple[int, str]]]:
    """Adopt what producers wrote, and read the flows of destinations that brought nothing: all of them, by destination, if
    anything is new; else none.
    """
    adopted = adopt.take_over(tx) if intake.any_waiting(tx) else 0
    memory, names = flows.here(tx), sorted({name for order in orders for name in order.claim.destinations})
    rows = flow_store.select_flows_of(tx, names)
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for row in rows:
        found[row.destination].append((row.id, row.type))
    new = any(memory.flow_id((row.destination, row.type)) is None for row in rows)
    # what this very transaction has made may yet be rolled back
    tx.on_commit(lambda: memory.learn([(row.id, (row.destination, row.type)) for row in rows]))
    return found if adopted or new else {}


def _fill(tx: Tx, orders: list[_Order], grant: Grant) -> None:
    lost: set[bytes] = set()
    for _ in range(PASSES):
        still = [order for order in orders if order.open > 0]
        if not still or not _serve(tx, still, grant, lost):
            return


def _serve(tx: Tx, orders: list[_Order], grant: Grant, lost: set[bytes]) -> bool:
    """One look, one lock, one write. Gives whether another look is worth it: others were quicker at some (`lost`)."""
    wanted: dict[int, int] = defaultdict(int)
    for order in orders:
        for flow_ids in order.flow_ids:
            for flow_id in flow_ids:
                wanted[flow_id] = min(DEEPEST_LOOK, wanted[flow_id] + order.open) + len(lost)
    if not wanted:
        return False
    heads: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for row in store.select_heads(tx, wanted):
        if bytes(row.id) not in lost:
            heads[row.flow_id].append((row.available_at, bytes(row.id)))
    chosen = {message_id: order for order in orders for message_id in _pick(order, heads)}
    if not chosen:
        return False
    rows = {bytes(row.id): row for row in store.lock_pending(tx, sorted(chosen))}
    taken = _write(tx, {one: chosen[one] for one in sorted(rows)}, grant)
    for message_id, order in chosen.items():  # in the order of the heads, which is the order of the answer
        if message_id in taken:
            order.got[message_id] = rows[message_id]
    missed = chosen.keys() - taken
    lost |= missed
    return bool(missed)


def _pick(order: _Order, heads: dict[int, list[tuple[int, bytes]]]) -> list[bytes]:
    """Take the oldest messages off the heads, destination by destination as the claim prefers."""
    picked: list[bytes] = []
    for flow_ids in order.flow_ids:
        there = sorted((*place, flow_id) for flow_id in flow_ids for place in heads.get(flow_id, ()))
        for available_at, message_id, flow_id in there[: order.open - len(picked)]:
            heads[flow_id].remove((available_at, message_id))
            picked.append(message_id)
    return picked


def _write(tx: Tx, orders: dict[bytes, _Order], grant: Grant) -> set[bytes]:
    if not orders:
        return set()
    workers = {one: order.claim.worker for one, order in orders.items()}
    written = store.update_claimed(
        tx, grant.digest, workers, {one: _lease(tx, order.claim) for one, order in orders.items()}
    )
    if written == len(orders):
        return set(orders)
    # this server did not hold the locks that it gave: the write alone decides who has what
    return {bytes(row.id) for row in store.select_granted(tx, grant.digest, list(orders))}


def _lease(tx: Tx, command: Claim) -> int:
    return micros(tx.host.settings.jobs_lease_seconds) if command.lease is None else command.lease


# -- answers ---------------------------------------------------------------------------------------------------------------


def _contents(tx: Tx, ids: list[bytes]) -> dict[bytes, Any]:
    return {bytes(row.message_id): row for row in store.select_contents(tx, ids)} if ids else {}


def _answer(tx: Tx, order: _Order, grant: Grant, contents: dict[bytes, Any], known: dict[str, Destination]) -> Claimed:
    expires_at, names = tx.now + _lease(tx, order.claim), flows.Names(tx)
    return Claimed(
        tuple(
            _granted(
                tx, names[row.flow_id], row, contents[one], grant, row.attempt + 1, row.fence + 1, expires_at, known
            )
            for one, row in order.got.items()
        )
    )


def _granted(
    tx: Tx,
    flow: tuple[str, str],
    row: Any,
    content: Any,
    grant: Grant,
    attempt: int,
    fence: int,
    expires_at: int,
    known: dict[str, Destination],
) -> Granted:
    return Granted(
        id=bytes(row.id),
        flow=flow,
        message_key=bytes(content.message_key).decode(),
        schema_version=content.schema_version,
        payload=bytes(content.payload),
        occurred_at=content.occurred_at,
        ordering_key=None if content.ordering_key is None else bytes(content.ordering_key).decode(),
        correlation_id=content.correlation_id,
        target_reference=content.target_reference,
        traceparent=content.traceparent,
        attempt=attempt,
        max_attempts=destinations.max_attempts(tx, row, known.get(flow[0])),
        token=reservations.token(tx.host.token_key, grant, bytes(row.id), fence),
        fence=fence,
        expires_at=expires_at,
    )


def _held(tx: Tx, grant: Grant, ids: Sequence[bytes]) -> tuple[Granted, ...]:
    """What a grant of an earlier try or call still holds, in the order in which it was given."""
    found = store.select_granted(tx, grant.digest, ids) if ids else ()
    rows = {bytes(row.id): row for row in found if row.due_at > tx.now}
    contents, names = _contents(tx, list(rows)), flows.Names(tx)
    known = destinations.read(tx, {names[row.flow_id][0] for row in rows.values()})
    return tuple(
        _granted(tx, names[row.flow_id], row, contents[one], grant, row.attempt, row.fence, row.due_at, known)
        for one, row in ((one, rows[one]) for one in ids if one in rows)
    )


# -- repeats ---------------------------------------------------------------------------------------------------------------


def _recall(tx: Tx, commands: Sequence[Claim]) -> list[Claimed | Refusal] | None:
    """An earlier try of this unit may have been committed: if any of its messages carries its grant, all of it was."""
    if "claim" not in tx.memo:
        return None
    grant, by_order = tx.memo["claim"]
    ids = [one for got in by_order.values() for one in got]
    if not ids or not store.select_granted(tx, grant.digest, ids):
        return None
    known = destinations.read(tx, {name for command in commands for name in command.destinations})
    answers = _refused(commands, known) | _replays(tx, commands)
    answers |= {index: Claimed(_held(tx, grant, got)) for index, got in by_order.items()}
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
        digest = bytes(row.digest)
        command = commands[known[digest]]
        grant = reservations.unseal(
            tx.host.token_key, row.sealed, row.grant_digest, command.caller.principal.key_id, command.claim_id or ""
        )
        ids = [bytes(row.message_ids[place : place + 16]) for place in range(0, len(row.message_ids), 16)]
        held = _held(tx, grant, ids) if grant is not None else ()
        if held:
            found[known[digest]] = Claimed(held, replayed=True)
        else:
            spent.append(digest)
    if spent:
        store.delete_claims(tx, spent)
    return found


def _digest(command: Claim) -> bytes:
    return reservations.claim_digest(command.caller.principal.key_id, "outbox\0" + (command.claim_id or ""))


def _remember_claims(tx: Tx, orders: list[_Order], grant: Grant) -> None:
    rows = [
        {
            "digest": _digest(order.claim),
            "sealed": reservations.seal(
                tx.host.token_key, grant, order.claim.caller.principal.key_id, order.claim.claim_id
            ),
            "grant_digest": grant.digest,
            "message_ids": b"".join(order.got),
            "purge_at": tx.now + _lease(tx, order.claim) + LOST_CLAIM_KEPT,
        }
        for order in orders
        if order.claim.claim_id is not None and order.got
    ]
    if rows:
        store.insert_claims(tx, sorted(rows, key=lambda row: bytes(row["digest"])))


def _tell(tx: Tx, orders: list[_Order]) -> None:
    leases = [_lease(tx, order.claim) for order in orders if order.got]
    if leases:
        memory, names = flows.here(tx), flows.Names(tx)
        claimed = Counter((names[row.flow_id], Kind.CLAIMED.value) for order in orders for row in order.got.values())
        tx.on_commit(lambda: memory.abandon_in(min(leases) / MICROS))
        tx.on_commit(lambda: memory.count(claimed))
