"""Flows come to be with their first message, and are remembered by this process once committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from app.db.tx import Tx
from app.primitives.outbox.here import Here
from app.primitives.outbox.model.states import Flow
from app.primitives.outbox.store import flows as store


def here(tx: Tx) -> Here:
    state: Here = tx.host.state("outbox")
    return state


def resolve(tx: Tx, wanted: Iterable[Flow]) -> dict[Flow, int]:
    """Ids of these flows, making those that are not there yet.

    Race: two processes make the same flow: the unique index decides, both read the winner's id.
    """
    memory = here(tx)
    known = {flow: memory.flow_id(flow) for flow in wanted}
    if all(flow_id is not None for flow_id in known.values()):
        return {flow: flow_id for flow, flow_id in known.items() if flow_id is not None}
    there = refresh(tx)
    missing = sorted(flow for flow in known if flow not in there)
    if missing:
        # in one order everywhere, so that two makers of several flows wait for each other and never in a ring
        store.insert_missing_flows(tx, [{"destination": name, "type": type_} for name, type_ in missing])
        there = refresh(tx)
    return {flow: there[flow] for flow in known}


def refresh(tx: Tx) -> dict[Flow, int]:
    """Read all flows; this process remembers them when the transaction has been committed."""
    found = [(row.id, (row.destination, row.type)) for row in store.select_flows(tx)]
    memory = here(tx)
    tx.on_commit(lambda: memory.learn(found))
    return {flow: flow_id for flow_id, flow in found}


class Names(defaultdict[int, Flow]):
    """Flows by id, looked up as needed."""

    def __init__(self, tx: Tx) -> None:
        super().__init__()
        self._tx = tx

    def __missing__(self, flow_id: int) -> Flow:
        known = here(self._tx).flow(flow_id)
        if known is not None:
            self[flow_id] = known
            return known
        self.update({found: flow for flow, found in refresh(self._tx).items()})
        if flow_id not in self.keys():
            raise LookupError(f"flow {flow_id} is named by a message and is not there")
        return self[flow_id]


def peek(tx: Tx, destinations: list[str]) -> list[Flow]:
    """The flows of these destinations that have pending messages now. One that another replica made is remembered at once."""
    found = [(row.destination, row.type) for row in store.select_busy_flows(tx, destinations)]
    memory = here(tx)
    if any(memory.flow_id(flow) is None for flow in found):
        memory.learn([(row.id, (row.destination, row.type)) for row in store.select_flows_of(tx, destinations)])
    return found
