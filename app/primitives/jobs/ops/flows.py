"""Flows and queues come to be with their first job, and are remembered by this process once committed."""

from __future__ import annotations

from collections.abc import Iterable

from app.db.tx import Tx
from app.primitives.jobs.here import Here
from app.primitives.jobs.model import Flow
from app.primitives.jobs.store import work as store


def here(tx: Tx) -> Here:
    state: Here = tx.host.state("jobs")
    return state


def resolve(tx: Tx, wanted: Iterable[Flow]) -> dict[Flow, int]:
    """Ids of these flows, making those (and their queues) that are not there yet.

    Race: two processes make the same flow: the unique index decides, both read the winner's id.
    """
    memory = here(tx)
    known = {flow: memory.flow_id(flow) for flow in wanted}
    found = {flow: flow_id for flow, flow_id in known.items() if flow_id is not None}
    if len(found) == len(known):
        return found
    there = refresh(tx)
    missing = sorted(flow for flow in known if flow not in there)
    if missing:
        # in one order everywhere, so that two makers of several flows wait for each other and never in a ring
        make_queues(tx, sorted({queue for queue, _, _ in missing}))
        store.insert_missing_flows(
            tx, [{"queue": queue, "type": type_, "schema_version": version} for queue, type_, version in missing]
        )
        there = refresh(tx)
    return {flow: there[flow] for flow in known}


def make_queues(tx: Tx, names: Iterable[str]) -> None:
    store.insert_missing_queues(
        tx, [{"name": name, "description": "", "created_at": tx.now, "updated_at": tx.now} for name in names]
    )


def refresh(tx: Tx) -> dict[Flow, int]:
    """Read all flows; this process remembers them when the transaction has been committed."""
    rows = store.select_flows(tx)
    found = [(row.id, (row.queue, row.type, row.schema_version)) for row in rows]
    limits = {row.queue: (row.max_depth, row.retention_seconds, row.contract_policy) for row in rows}
    memory = here(tx)
    tx.on_commit(lambda: memory.learn(found, limits))
    return {flow: flow_id for flow_id, flow in found}


def names(tx: Tx, flow_ids: Iterable[int]) -> dict[int, Flow]:
    """The flows behind these ids."""
    memory = here(tx)
    known = {flow_id: memory.flow(flow_id) for flow_id in flow_ids}
    if all(flow is not None for flow in known.values()):
        return {flow_id: flow for flow_id, flow in known.items() if flow is not None}
    back = {flow_id: flow for flow, flow_id in refresh(tx).items()}
    return {flow_id: back[flow_id] for flow_id in known}


def refresh_memory(tx: Tx, _command: None) -> int:
    """Read what other replicas have changed of flows and queues; gives how many flows there are."""
    found = refresh(tx)
    for callback in tx.after_commit:  # a reading op has nothing to commit
        callback()
    return len(found)
