"""Take: which jobs a unit of claims gets. Chooses by the heads of the flows, locks, and writes under one grant.

Flow ids come from this process's memory, pauses from the database in the very statement that looks. Only a claim that finds
nothing asks the database for flows that another replica has made meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from app.clock import micros
from app.db.tx import Tx
from app.primitives.jobs.heads import LOWEST, Look, Place
from app.primitives.jobs.model import Claim
from app.primitives.jobs.ops import flows
from app.primitives.jobs.store import work as store
from app.primitives.jobs.turns import Turns, passed_over
from app.reservations import Grant

PASSES = 3  # looks again where others were quicker
DEEPEST_LOOK = 512

Heads = dict[int, list[tuple[int, int, bytes]]]  # by flow: (priority, available_at, id), the best last


@dataclass(slots=True)
class Order:
    """One claim that is to be served, and what it got (id -> row before the claim). `index` is its place in the unit."""

    index: int
    claim: Claim
    flows: dict[str, list[int]] = field(default_factory=dict)  # by queue, in the caller's order
    got: dict[bytes, Any] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)  # the flows that had work for it

    @property
    def open(self) -> int:
        return self.claim.limit - len(self.got)

    def names(self, flow_id: int) -> bool:
        return any(flow_id in flow_ids for flow_ids in self.flows.values())


def take(tx: Tx, claims: Sequence[tuple[int, Claim]], grant: Grant) -> list[Order]:
    """Serve the claims, the earliest first; each order holds what it got."""
    orders = [Order(index, one) for index, one in claims]
    _route(tx, orders)
    _fill(tx, orders, grant)
    empty = [order for order in orders if not order.got]
    if empty and _learn(tx, empty):
        _route(tx, empty)
        _fill(tx, empty, grant)
    _count_turns(tx, orders)
    return orders


def _route(tx: Tx, orders: list[Order]) -> None:
    memory = flows.here(tx)
    for order in orders:
        order.flows = {
            queue: [
                flow_id for flow_id, type_, version in memory.flows_of(queue) if order.claim.handles(type_, version)
            ]
            for queue in order.claim.queues
        }


def _learn(tx: Tx, orders: list[Order]) -> bool:
    """Read the flows of queues that brought nothing; gives whether there was one that this process did not know."""
    memory = flows.here(tx)
    names = sorted({queue for order in orders for queue in order.claim.queues})
    found = [(row.id, (row.queue, row.type, row.schema_version)) for row in store.select_flows_of(tx, names)]
    fresh = [(flow_id, flow) for flow_id, flow in found if memory.flow_id(flow) is None]
    memory.learn(fresh, {})  # these are committed: another connection has read them
    return bool(fresh)


def _count_turns(tx: Tx, orders: list[Order]) -> None:
    """After the commit: which flows were passed over for queues that were named before their own."""
    memory = flows.here(tx).turns
    for order in orders:
        if len(order.flows) > 1:
            taken = {row.flow_id for row in order.got.values()}
            told = passed_over(order.flows.values(), seen=order.seen, taken=taken, full=order.open <= 0)
            tx.on_commit(partial(memory.tell, *told))


def _fill(tx: Tx, orders: list[Order], grant: Grant) -> None:
    lost: set[bytes] = set()
    for _ in range(PASSES):
        still = [order for order in orders if order.open > 0]
        if not still or not _serve(tx, still, grant, lost):
            return


def _serve(tx: Tx, orders: list[Order], grant: Grant, lost: set[bytes]) -> bool:
    """One look, one lock, one write. Gives whether another look is worth it: others were quicker at some (`lost`)."""
    wanted: dict[int, int] = defaultdict(int)
    for order in orders:
        for flow_ids in order.flows.values():
            for flow_id in flow_ids:
                wanted[flow_id] = min(DEEPEST_LOOK, wanted[flow_id] + order.open)
    if not wanted:
        return False
    memory = flows.here(tx).heads
    look = memory.look(wanted)
    chosen, rows = _look(tx, orders, wanted, look.bounds, lost)
    if sum(order.open for order in orders) > len(rows) and any(bound != LOWEST for bound in look.bounds.values()):
        # too little from there on: look at everything, unless this has locked what it found
        for flow_id in wanted:
            memory.forget(flow_id)
        if not rows:
            memory.over(look)
            look = memory.look(wanted)
            chosen, rows = _look(tx, orders, wanted, look.bounds, lost)
    taken = _write(tx, {job_id: chosen[job_id] for job_id in chosen if job_id in rows}, rows, grant)
    for job_id, order in chosen.items():  # in the order of the heads, which is the order of the answer
        if job_id in taken:
            order.got[job_id] = rows[job_id]
    _remember(tx, [rows[job_id] for job_id in taken], look)
    missed = chosen.keys() - taken
    lost |= missed
    return bool(missed)


def _look(
    tx: Tx,
    orders: list[Order],
    wanted: dict[int, int],
    bounds: dict[int, Place],
    lost: set[bytes],
) -> tuple[dict[bytes, Order], dict[bytes, Any]]:
    """Who is to get what, and the rows of it that are locked now."""
    if len(wanted) == 1:
        ((flow_id, most),) = wanted.items()
        rows = {row.id: row for row in store.lock_heads(tx, flow_id, most, bounds[flow_id])}
        heads = {flow_id: [(row.priority, row.available_at, row.id) for row in rows.values()]}
        return _choose(orders, heads, Turns()), rows
    heads = defaultdict(list)
    deeper = {flow_id: most + len(lost) for flow_id, most in wanted.items()}
    for row in store.select_heads(tx, deeper, bounds):
        if row.id not in lost:
            heads[row.flow_id].append((row.priority, row.available_at, row.id))
    chosen = _choose(orders, heads, flows.here(tx).turns.of(wanted))
    found = store.lock_available(tx, sorted(chosen)) if chosen else ()
    # between the look and the lock a job may have been moved to another flow, which the caller did not name
    return chosen, {row.id: row for row in found if chosen[row.id].names(row.flow_id)}


def _remember(tx: Tx, rows: list[Any], look: Look) -> None:
    """After the commit: the next look begins where this one found work."""
    heads: dict[int, Place] = {}
    for row in rows:
        place = (row.priority, row.available_at)
        heads[row.flow_id] = min(place, heads.get(row.flow_id, place))
    memory = flows.here(tx).heads
    if heads:
        tx.on_commit(lambda: memory.seen(heads, look))
    else:
        memory.over(look)


def _choose(orders: list[Order], heads: Heads, turns: Turns) -> dict[bytes, Order]:
    """Who gets which job, the earliest claim first. `turns` is counted on from claim to claim."""
    for rows in heads.values():
        rows.sort(reverse=True)
    return {job_id: order for order in orders for job_id in _pick(order, heads, turns)}


def _pick(order: Order, heads: Heads, turns: Turns) -> list[bytes]:
    """Take the best jobs for one claim: one of each queue whose turn it is; then queue by queue as it prefers."""
    queues = list(order.flows.values())
    seen = {flow_id for flow_ids in queues for flow_id in flow_ids if heads.get(flow_id)}
    order.seen |= seen
    due = [flow_ids for flow_ids in queues if turns.due(flow_ids)] if len(queues) > 1 else []
    picked: list[bytes] = []
    taken: set[int] = set()
    for flow_ids, most in [*((flow_ids, 1) for flow_ids in due), *((flow_ids, order.open) for flow_ids in queues)]:
        for flow_id, job_id in _best(flow_ids, heads, min(most, order.open - len(picked))):
            picked.append(job_id)
            taken.add(flow_id)
    if len(queues) > 1:
        turns.tell(*passed_over(queues, seen=seen, taken=taken, full=len(picked) >= order.open))
    return picked


def _best(flow_ids: list[int], heads: Heads, most: int) -> list[tuple[int, bytes]]:
    """Take so many (flow, job) off one queue's heads: by priority, availability, age."""
    best: list[tuple[int, bytes]] = []
    busy = [flow_id for flow_id in flow_ids if heads.get(flow_id)]
    while busy and len(best) < most:
        flow_id = min(busy, key=lambda one: heads[one][-1])
        best.append((flow_id, heads[flow_id].pop()[2]))
        if not heads[flow_id]:
            busy.remove(flow_id)
    return best


def lease_of(tx: Tx, claim: Claim, row: Any) -> int:
    """What a claim asks for; else what the contract of the job says, which stands in the waiting row; else the setting."""
    asked = row.lease_micros if claim.lease is None else claim.lease
    return micros(tx.host.settings.jobs_lease_seconds) if asked is None else int(asked)


def _write(tx: Tx, orders: dict[bytes, Order], rows: dict[bytes, Any], grant: Grant) -> set[bytes]:
    if not orders:
        return set()
    ids = sorted(orders)
    written = store.update_claimed(
        tx,
        grant.digest,
        {job_id: orders[job_id].claim.worker for job_id in ids},
        {job_id: lease_of(tx, orders[job_id].claim, rows[job_id]) for job_id in ids},
    )
    if written == len(ids):
        return set(ids)
    # this server did not hold the locks that it gave: the write alone decides who has what
    return {row.id for row in store.select_granted(tx, [grant.digest], ids)}
