"""From validated bodies to commands: units become microseconds, keys become digests, identities are made."""

from __future__ import annotations

import hashlib
from typing import Any

from app.clock import micros
from app.http.call import Call
from app.jsontext.types import TEN_YEARS_SECONDS
from app.primitives.jobs.model import (
    Beat,
    Caller,
    Claim,
    Concurrency,
    Debounce,
    NewJob,
    Outcome,
    ReleaseReason,
    Settlement,
    Unique,
    concurrency_digest,
    debounce_digest,
    id_bytes,
    new_id,
    unique_digest,
)
from app.primitives.jobs.schemas.held import (
    CompleteJob,
    FailJob,
    HeartbeatJob,
    ReleaseJob,
    SettleItem,
    UnknownJob,
)
from app.primitives.jobs.schemas.work import (
    ClaimJobs,
    EnqueueJob,
)
from app.reservations import settlement_digest

DEBOUNCE_FACTOR = 10  # how many delays a debounced job waits at most, unless its enqueue says


def caller_of(call: Call[Any, Any]) -> Caller:
    return Caller(call.principal, call.request_id, call.traceparent)


def new_job(body: EnqueueJob) -> NewJob:
    """The id is made here, before anything is tried: it is what the command is known by."""
    key = body.idempotency_key
    return NewJob(
        id=new_id(),
        flow=(body.queue, body.type, body.schema_version),
        payload=body.payload,
        priority=body.priority,
        available_at=body.available_at,
        delay=_micros(body.delay_seconds),
        max_attempts=body.max_attempts,
        timeout=_micros(body.timeout_seconds),
        retry_until=body.retry_until,
        key_digest=None if key is None else hashlib.sha256(key.encode()).digest(),
        fingerprint=None if key is None else _fingerprint(body),
        correlation_id=body.correlation_id,
        parent_operation_id=body.parent_operation_id,
        unique=_unique(body),
        debounce=_debounce(body),
        concurrency=_concurrency(body),
    )


def _unique(body: EnqueueJob) -> Unique | None:
    if body.unique is None:
        return None
    name = body.unique.key.encode()
    return Unique(name, unique_digest(body.type, name), body.unique.until, body.unique.on_conflict)


def _debounce(body: EnqueueJob) -> Debounce | None:
    if body.debounce is None:
        return None
    name, delay = body.debounce.key.encode(), body.debounce.delay_seconds
    most = body.debounce.max_wait_seconds
    longest = most if most is not None else min(delay * DEBOUNCE_FACTOR, TEN_YEARS_SECONDS)
    return Debounce(name, debounce_digest(body.type, name), micros(delay), micros(longest))


def _concurrency(body: EnqueueJob) -> Concurrency | None:
    if body.concurrency is None:
        return None
    name = body.concurrency.key.encode()
    return Concurrency(name, concurrency_digest(name), body.concurrency.limit)


def _fingerprint(body: EnqueueJob) -> bytes:
    """Over everything that was sent but the key, the payload as bytes."""
    return settlement_digest(
        body.queue,
        body.type,
        body.schema_version,
        body.payload,
        body.priority,
        body.available_at,
        body.delay_seconds,
        body.max_attempts,
        body.timeout_seconds,
        body.retry_until,
        body.correlation_id,
        body.parent_operation_id,
        *_keys_sent(body),
    )


def _keys_sent(body: EnqueueJob) -> tuple[str | float | None, ...]:
    """Nothing for a job without keys: its fingerprint is the one that it had before there were any."""
    if body.unique is None and body.debounce is None and body.concurrency is None:
        return ()
    one, two, three = body.unique, body.debounce, body.concurrency
    return (
        *((None,) * 3 if one is None else (one.key, one.until.value, one.on_conflict.value)),
        *((None,) * 3 if two is None else (two.key, two.delay_seconds, two.max_wait_seconds)),
        *((None,) * 2 if three is None else (three.key, three.limit)),
    )


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else micros(seconds)


def claim(body: ClaimJobs, caller: Caller) -> Claim:
    return Claim(
        queues=tuple(dict.fromkeys(body.queues)),
        handlers=tuple((handler.type, tuple(handler.schema_versions)) for handler in body.handlers or ()),
        worker=body.worker,
        limit=body.limit,
        lease=_micros(body.lease_seconds),
        caller=caller,
        claim_id=body.claim_id,
    )


def beat(job_id: str, body: HeartbeatJob) -> Beat:
    return Beat(id_bytes(job_id), body.token, _micros(body.lease_seconds), body.progress)


def settlement(item: SettleItem) -> Settlement:
    return _settlement(
        item.id,
        item.token,
        item.outcome,
        result=item.result,
        category=item.category,
        message=item.message,
        reference=item.reference,
        retry=bool(item.retry),
        delay=item.retry_after_seconds if item.delay_seconds is None else item.delay_seconds,
        reason=item.reason,
    )


def completed(job_id: str, body: CompleteJob) -> Settlement:
    return _settlement(job_id, body.token, Outcome.SUCCEEDED, result=body.result)


def failed(job_id: str, body: FailJob) -> Settlement:
    return _settlement(
        job_id,
        body.token,
        Outcome.FAILED,
        category=body.category,
        message=body.message,
        reference=body.reference,
        retry=body.retry,
        delay=body.retry_after_seconds,
    )


def unknown(job_id: str, body: UnknownJob) -> Settlement:
    return _settlement(
        job_id, body.token, Outcome.UNKNOWN, category=body.category, message=body.message, reference=body.reference
    )


def released(job_id: str, body: ReleaseJob) -> Settlement:
    return _settlement(job_id, body.token, Outcome.RELEASED, reason=body.reason, delay=body.delay_seconds)


def _settlement(
    job_id: str,
    token: str,
    outcome: Outcome,
    *,
    result: bytes | None = None,
    category: str | None = None,
    message: str | None = None,
    reference: str | None = None,
    retry: bool = False,
    reason: ReleaseReason | None = None,
    delay: float | None = None,
) -> Settlement:
    """The digest is over the content alone, in one order, so that every way to settle the same gives the same."""
    digest = settlement_digest(
        outcome.value, result, category, message, reference, retry or None, reason and reason.value, delay
    )
    return Settlement(
        id=id_bytes(job_id),
        token=token,
        outcome=outcome,
        digest=digest,
        result=result,
        category=category,
        message=message,
        reference=reference,
        retry=retry,
        delay=_micros(delay),
        reason=reason,
    )
