"""HTTP in and out of the locks; decisions are in the ops."""

from __future__ import annotations

import itertools
from typing import Any

from app.access import Caller, Role
from app.clock import MICROS, micros, to_text
from app.errors import LOCKED, NOT_FOUND, RESERVATION_LOST, Refusal
from app.http.call import Answer, Call
from app.http.paging import cursor, place
from app.http.routing import thin_router
from app.http.waiting import require_in_force, watch
from app.ids import new_id
from app.primitives.locks.model import (
    Acquire,
    Acquired,
    Break,
    Filter,
    Hold,
    Leave,
    Lock,
    State,
    Verify,
    digest_of,
    place_of,
)
from app.primitives.locks.schemas import (
    AcquiredLock,
    AcquireLock,
    BreakLock,
    BrokenLock,
    ListLocksParams,
    LockListRead,
    ReleasedLock,
    ReleaseLock,
    RenewedLock,
    RenewLock,
    VerifiedLock,
    VerifyLock,
)

router = thin_router("/v1/locks", tags=["locks"])

_numbers = itertools.count(1)


@router.post("/acquire", name="acquire_lock", requires=Role.WORKER, answers=AcquiredLock, refuses=(LOCKED,))
async def acquire_lock(call: Call[AcquireLock]) -> Answer:
    """Acquire a lock, waiting in line for it if you like.

    One caller at a time holds a name, until it releases it or the lease ends; renew well before `expires_at`. Waiters are
    served in the order in which they came, on all replicas together. 423 `locked` says who has it and until when; with a
    `claim_id`, ask again at once to keep your place. If the answer was lost, send the same call with the same `claim_id`.
    Hand `fence` to what you write to, so that it can refuse an older one: a lease can end while you do not notice.
    """
    call.principal.require_names([call.body.name])
    wait = 0.0 if call.runtime.draining.is_set() else call.body.wait_seconds
    command = _command(call, wait)
    if wait <= 0:
        return _acquired(await call.runtime.lane("locks.acquire").submit(command))
    try:
        acquired = await call.runtime.desks["locks"].claim(command, wait, watch(call))
    except Refusal:
        _ = call.runtime.lane("locks.leave").put(Leave(command))
        raise
    if acquired is not None:
        return _acquired(acquired)
    holder: Refusal = await call.runtime.lane("locks.leave").put(Leave(command))
    require_in_force(call)
    raise holder


def _command(call: Call[AcquireLock], wait: float) -> Acquire:
    body, caller = call.body, _caller_of(call)
    digest = digest_of(body.name)
    return Acquire(
        body.name,
        digest,
        body.owner,
        micros(body.ttl_seconds),
        micros(wait),
        caller,
        body.claim_id,
        place_of(caller, body.claim_id, digest),
        next(_numbers),
    )


def _caller_of(call: Call[Any, Any]) -> Caller:
    return Caller(call.principal, call.request_id)


def _acquired(acquired: Acquired) -> Answer:
    return Answer({
        "name": acquired.name,
        "reservation": {
            "token": acquired.token,
            "fence": acquired.fence,
            "expires_at": to_text(acquired.expires_at),
        },
        "replayed": acquired.replayed,
    })  # fmt: skip


@router.post("/renew", name="renew_lock", requires=Role.WORKER, answers=RenewedLock, refuses=(RESERVATION_LOST,))
async def renew_lock(call: Call[RenewLock]) -> Answer:
    """Extend the lease of a lock that you hold.

    On 409 `reservation_lost` stop at once what the lock protects: another may hold it now. May be repeated.
    """
    call.principal.require_names([call.body.name])
    lease = None if call.body.ttl_seconds is None else micros(call.body.ttl_seconds)
    hold = Hold(call.body.name, digest_of(call.body.name), call.body.token, lease)
    renewed = await call.runtime.lane("locks.renew").submit(hold)
    return Answer({"name": renewed.name, "fence": renewed.fence, "expires_at": to_text(renewed.expires_at)})


@router.post("/release", name="release_lock", requires=Role.WORKER, answers=ReleasedLock, refuses=(RESERVATION_LOST,))
async def release_lock(call: Call[ReleaseLock]) -> Answer:
    """Give a lock back; the first in its line gets it.

    A second release of your own is answered as the first (`replayed: true`), also if others have had the lock since: that is
    remembered of its last eight holders. 409 `reservation_lost`: the lease had ended before, so what you did under the lock may
    have overlapped with another.
    """
    call.principal.require_names([call.body.name])
    hold = Hold(call.body.name, digest_of(call.body.name), call.body.token)
    released = await call.runtime.lane("locks.release").submit(hold)
    return Answer({"name": released.name, "fence": released.fence, "replayed": released.replayed})


@router.post("/verify", name="verify_lock", requires=(Role.WORKER, Role.PRODUCER, Role.VIEWER), answers=VerifiedLock)
async def verify_lock(call: Call[VerifyLock]) -> Answer:
    """Ask whether a fence is that of the current holder.

    For whoever is written to under a lock and cannot keep the highest fence itself. `current` is true only while the lock is
    held and no later fence was given out. A fence outlives release, expiry and purge: of a name that was purged, `fence` may
    be higher than its last, never lower.
    """
    call.principal.require_names([call.body.name])
    command = Verify(call.body.name, digest_of(call.body.name), call.body.fence)
    verified = await call.runtime.lane("locks.verify").submit(command)
    return Answer({
        "name": call.body.name, "current": verified.current, "fence": verified.fence, "held": verified.held,
    })  # fmt: skip


@router.post("/break", name="break_lock", requires=Role.OPERATOR, answers=BrokenLock, refuses=(NOT_FOUND,))
async def break_lock(call: Call[BreakLock]) -> Answer:
    """Take a lock away from its holder, who is told at its next renewal.

    Audited with the reason. Its holder may still be at work: make sure that it has stopped, or that what it writes to compares
    fences. With `fence` the call may be repeated without harm.
    """
    call.principal.require_names([call.body.name])
    body = call.body
    command = Break(body.name, digest_of(body.name), body.reason, body.fence, _caller_of(call), new_id())
    broken = await call.runtime.lane("locks.break").submit(command)
    return Answer({"name": broken.name, "broken": broken.broken, "fence": broken.fence, "owner": broken.owner})


@router.get("", name="list_locks", requires=Role.VIEWER, answers=LockListRead, response_description="A page of locks.")
async def list_locks(call: Call[None, ListLocksParams]) -> Answer:
    """List locks that are held, or were.

    Those whose leases end last come first (of free ones, those that were freed last). A key that is limited to names sees only
    those; so a page may be shorter than `limit`, or empty, though there are more: only `next_cursor: null` means the end.
    """
    query = call.query
    after = place(call, "locks", (int, bytes))
    wanted = Filter(
        State[query.state.name],
        query.name,
        query.limit,
        None if after is None else (after[0], after[1]),
        call.principal,
    )
    page = await call.runtime.lane("locks.list").submit(wanted)
    following = None if page.after is None else cursor(call, "locks", page.after)
    return Answer({"items": [_view(lock) for lock in page.locks], "next_cursor": following})


def _view(lock: Lock) -> dict[str, Any]:
    return {
        "name": lock.name,
        "state": lock.state.text,
        "owner": lock.owner,
        "fence": lock.fence,
        "ttl_seconds": None if lock.lease is None else lock.lease / MICROS,
        "acquired_at": None if lock.acquired_at is None else to_text(lock.acquired_at),
        "expires_at": to_text(lock.due_at) if lock.state is State.HELD else None,
        "waiters": lock.waiters,
    }
