"""HTTP in and out of idempotency; decisions are in the ops."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from app.access import Caller, Role
from app.clock import MICROS, micros, to_text
from app.errors import (
    IDEMPOTENCY_CONFLICT,
    NOT_FOUND,
    RESERVATION_LOST,
    SETTLEMENT_CONFLICT,
    STATE_CONFLICT,
    VERDICT_CONFLICT,
)
from app.http.call import Answer, Call
from app.http.paging import cursor, place
from app.http.routing import thin_router
from app.http.waiting import require_in_force, watch
from app.ids import new_id
from app.primitives.idempotency.model import (
    Beat,
    Check,
    Checked,
    Filter,
    KeyRead,
    Outcome,
    Reconcile,
    Settle,
    Settled,
    State,
    Verdict,
    fingerprint_of,
    key_digest,
    request_digest,
    said,
)
from app.primitives.idempotency.schemas import (
    CheckedKey,
    CheckKey,
    CompleteKey,
    FailKey,
    HeartbeatKey,
    KeyListRead,
    ListKeysParams,
    OneKey,
    ReconcileKey,
    RenewedKey,
    SettledKey,
    UnknownKey,
)

router = thin_router("/v1/idempotency", tags=["idempotency"])

OWNERS = (Role.PRODUCER, Role.WORKER)
LOST = (NOT_FOUND, RESERVATION_LOST, SETTLEMENT_CONFLICT)
LARGE_REQUEST = 16 * 1024  # above it, to bring a request into its canonical form would hold up the others
MOST_SECONDS = 30


@router.post(
    "/check",
    name="check_key",
    requires=OWNERS,
    answers=CheckedKey,
    refuses=(IDEMPOTENCY_CONFLICT,),
    headers={"Retry-After": "Of `in_progress`: seconds after which to ask again."},
)
async def check_key(call: Call[CheckKey]) -> Answer:
    """Ask whether work is to be done, and get hold of it if it is.

    The first who checks a key gets `acquired` and a reservation: do the work, then say what became of it with its token
    (`complete`, `fail`, `unknown`) before `expires_at`, or send heartbeats. Everybody else who sends the same request is told:
    `in_progress`, `replay` with the stored result, `failed`, or `reconcile` if nobody knows whether it was done. Another
    request under the same key is 409 `idempotency_conflict`. If the answer was lost, send the same call with the same
    `claim_id`.
    """
    call.principal.require_names([call.body.scope])
    command = await _command(call)
    if call.body.wait_seconds <= 0 or call.runtime.draining.is_set():
        return _answer(call, await call.runtime.lane("idempotency.check").submit(command))
    left = watch(call)
    checked = await call.runtime.desks["idempotency"].claim(command, call.body.wait_seconds, left)
    if checked is None:  # the wait is over: whatever there is now
        require_in_force(call)
        checked = await call.runtime.lane("idempotency.check").submit(command)
        if left() and checked.outcome is Outcome.ACQUIRED:
            await call.runtime.lane("idempotency.give_back").submit(checked)
    return _answer(call, checked)


async def _command(call: Call[CheckKey]) -> Check:
    body = call.body
    return Check(
        key_digest(body.scope, body.key),
        body.scope,
        await _fingerprint(body),
        micros(body.lease_seconds),
        micros(body.retention_seconds),
        body.on_owner_lost,
        _caller_of(call),
        body.claim_id,
    )


async def _fingerprint(body: CheckKey) -> bytes:
    if body.request is None:
        return fingerprint_of(body.fingerprint or "")
    if len(body.request) > LARGE_REQUEST:
        return await asyncio.to_thread(request_digest, body.request)
    return request_digest(body.request)


def _caller_of(call: Call[Any, Any]) -> Caller:
    return Caller(call.principal, call.request_id)


def _answer(call: Call[Any, Any], checked: Checked) -> Answer:
    reservation = headers = expires_at = None
    until = None if checked.expires_at is None else to_text(checked.expires_at)
    if checked.outcome is Outcome.ACQUIRED:
        reservation = {"token": checked.token, "fence": checked.fence, "expires_at": until}
    elif checked.outcome is Outcome.IN_PROGRESS and checked.expires_at is not None:
        expires_at = until
        left = -(-(checked.expires_at - call.runtime.clock.now()) // MICROS)
        headers = {"Retry-After": str(min(MOST_SECONDS, max(1, left)))}
    failure = checked.failure
    return Answer(
        {
            "outcome": checked.outcome.value,
            "reservation": reservation,
            "result": None if checked.result is None else msgspec.Raw(checked.result),
            "failure": failure and {"category": failure.category, "message": failure.message},
            "reason": checked.reason,
            "expires_at": expires_at,
            "attempt": checked.attempt,
            "replayed": checked.replayed,
        },
        headers=headers,
    )


# -- owners ----------------------------------------------------------------------------------------------------------------


@router.post("/complete", name="complete_key", requires=OWNERS, answers=SettledKey, refuses=LOST)
async def complete_key(call: Call[CompleteKey]) -> Answer:
    """Say that the work is done, and with what result.

    Everybody who sends the same request gets it, byte for byte, until the retention is over. A repeat with the same token and
    content is answered as before (`replayed: true`). 409 `reservation_lost`: you were too late, and somebody may have been told
    that the outcome is unknown; `reconcile` with what you know.
    """
    return await _settle(call, State.COMPLETED, result=call.body.result)


@router.post("/fail", name="fail_key", requires=OWNERS, answers=SettledKey, refuses=LOST)
async def fail_key(call: Call[FailKey]) -> Answer:
    """Say that the work failed and had no effect.

    With `retry: true` the next check does it; otherwise everybody who sends the same request is told of the failure. If it may
    have had an effect, call `unknown` instead.
    """
    body = call.body
    state = State.OPEN if body.retry else State.FAILED
    return await _settle(call, state, category=body.category, message=body.message)


@router.post("/unknown", name="mark_key_unknown", requires=OWNERS, answers=SettledKey, refuses=LOST)
async def mark_key_unknown(call: Call[UnknownKey]) -> Answer:
    """Say that the work may or may not have been done.

    Nobody does it again until there is a verdict (`reconcile`).
    """
    return await _settle(call, State.UNKNOWN, category=call.body.category, message=call.body.message)


async def _settle(
    call: Call[Any, Any],
    state: State,
    *,
    result: bytes | None = None,
    category: str | None = None,
    message: str | None = None,
) -> Answer:
    body = call.body
    call.principal.require_names([body.scope])
    digest = said(state, result, category, message)
    command = Settle(
        body.scope, body.key, key_digest(body.scope, body.key), body.token, state, digest, result, category, message
    )
    return _settled(body, await call.runtime.lane("idempotency.settle").submit(command, size=call.body_size))


def _settled(body: OneKey, settled: Settled) -> Answer:
    return Answer({
        "scope": body.scope,
        "key": body.key,
        "state": settled.state.text,
        "attempt": settled.attempt,
        "fence": settled.fence,
        "replayed": settled.replayed,
    })  # fmt: skip


@router.post("/heartbeat", name="heartbeat_key", requires=OWNERS, answers=RenewedKey, refuses=LOST[:2])
async def heartbeat_key(call: Call[HeartbeatKey]) -> Answer:
    """Extend the lease of a key that you own.

    On 409 `reservation_lost` stop at once. May be repeated.
    """
    body = call.body
    call.principal.require_names([body.scope])
    lease = None if body.lease_seconds is None else micros(body.lease_seconds)
    beat = Beat(key_digest(body.scope, body.key), body.token, lease)
    renewed = await call.runtime.lane("idempotency.renew").submit(beat)
    return Answer({
        "scope": body.scope, "key": body.key, "fence": renewed.fence, "expires_at": to_text(renewed.expires_at),
    })  # fmt: skip


# -- verdicts and reading --------------------------------------------------------------------------------------------------


@router.post(
    "/reconcile",
    name="reconcile_key",
    requires=(Role.WORKER, Role.OPERATOR),
    answers=SettledKey,
    refuses=(NOT_FOUND, STATE_CONFLICT, VERDICT_CONFLICT),
)
async def reconcile_key(call: Call[ReconcileKey]) -> Answer:
    """Give the verdict on an unknown key, with the evidence.

    For an operator, or for the service that got `reconcile` from its check and can find out. The first verdict stands; the same
    again is `replayed: true`, another is 409 `verdict_conflict`.
    """
    body = call.body
    call.principal.require_names([body.scope])
    result = body.result or b"null" if body.verdict is Verdict.COMPLETED else None
    command = Reconcile(
        body.scope,
        key_digest(body.scope, body.key),
        body.verdict,
        result,
        body.evidence,
        _caller_of(call),
        new_id(),
    )
    return _settled(body, await call.runtime.lane("idempotency.reconcile").submit(command, size=call.body_size))


@router.get(
    "", name="list_keys", requires=Role.VIEWER, answers=KeyListRead, response_description="A page of idempotency keys."
)
async def list_keys(call: Call[None, ListKeysParams]) -> Answer:
    """List idempotency keys; those that need a verdict, unless said.

    Only digests are stored, so a key is told by its digest. Those whose leases or retentions end last come first. A key that is
    limited to names sees only those scopes; so a page may be shorter than `limit` though there are more: only `next_cursor:
    null` means the end.
    """
    query = call.query
    if query.scope is not None:
        call.principal.require_names([query.scope])
    after = place(call, "idempotency", (int, bytes))
    wanted = Filter(
        State[query.state.name],
        query.scope,
        query.limit,
        None if after is None else (after[0], after[1]),
        call.principal,
    )
    page = await call.runtime.lane("idempotency.list").submit(wanted)
    following = None if page.after is None else cursor(call, "idempotency", page.after)
    return Answer({"items": [_view(one) for one in page.keys], "next_cursor": following})


def _view(one: KeyRead) -> dict[str, Any]:
    return {
        "scope": one.scope,
        "key_digest": one.digest.hex(),
        "state": one.state.text,
        "attempt": one.attempt,
        "fence": one.fence,
        "on_owner_lost": one.on_owner_lost.value,
        "created_at": to_text(one.created_at),
        "ended_at": None if one.ended_at is None else to_text(one.ended_at),
        "expires_at": None if one.due_at is None else to_text(one.due_at),
        "category": one.category,
    }
