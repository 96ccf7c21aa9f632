"""From a contract and its judgement to the terms that jobs decide by."""

from __future__ import annotations

from app.clock import micros
from app.primitives.contracts.model.contract import Contract, Effects, TerminalHandler
from app.primitives.contracts.model.judging import Judgement
from app.primitives.jobs.model.terms import Handler, Terms


def handler_of(declared: TerminalHandler | None) -> Handler | None:
    if declared is None:
        return None
    if declared.enqueue is not None:
        return Handler(declared.enqueue.queue, declared.enqueue.type, declared.enqueue.schema_version)
    assert declared.outbox is not None, "one of the two, as validated"
    return Handler(type=declared.outbox.type, destination=declared.outbox.destination)


def terms_of(contract: Contract, type_: str, version: int, judgement: Judgement) -> Terms:
    """What jobs of this type are enqueued with. A deadline replaces the count of attempts."""
    retry, dedup = contract.retry, contract.dedup
    deadline = None if retry is None else retry.retry_until_seconds
    return Terms(
        type=type_,
        schema_version=version,
        max_attempts=None if retry is None else retry.max_attempts,
        unlimited=retry is not None and (retry.unlimited_reason is not None or deadline is not None),
        retry_until=_micros(deadline),
        max_exceptions=None if retry is None else retry.max_exceptions,
        backoff=None if contract.backoff_seconds is None else tuple(contract.backoff_seconds),
        timeout=_micros(contract.timeout_seconds),
        lease=_micros(contract.lease_seconds),
        on_lease_loss=None if contract.on_lease_loss is None else str(contract.on_lease_loss),
        max_lease_losses=contract.max_lease_losses,
        handler=handler_of(contract.terminal_handler),
        payload_schema=contract.payload_schema,
        unique_by=None if dedup is None else dedup.unique_by,
        no_overlap_by=None if dedup is None else dedup.no_overlap_by,
        violations=tuple(str(one.rule) for one in judgement.violations),
        valid_until=judgement.valid_until,
        lapses=judgement.lapses,
        at_most=None if retry is None or contract.effects is not Effects.NON_IDEMPOTENT else retry.max_attempts,
    )


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else micros(seconds)
