"""Remember: one caller fills what is missing, the others get it."""

from __future__ import annotations

from typing import Any

import msgspec

from app.access import Caller
from app.clock import micros, seconds, to_text
from app.errors import NOT_FOUND, PAYLOAD_TOO_LARGE, RESERVATION_LOST, SETTLEMENT_CONFLICT
from app.http.call import Answer, Call
from app.http.routing import thin_router
from app.http.waiting import require_in_force, watch
from app.primitives.cache.model import Fill, Filled, Found, Remember, Remembered, Value
from app.primitives.cache.routes.entries import PATH, USERS, lasting, place
from app.primitives.cache.schemas import FailFill, FilledEntry, FillEntry, RememberedEntry, RememberEntry

router = thin_router("/v1/cache", tags=["cache"])

LOST = (NOT_FOUND, RESERVATION_LOST, SETTLEMENT_CONFLICT)


@router.post(
    "/{namespace}/{key}/remember", name="remember_cache_entry", requires=USERS, answers=RememberedEntry, path=PATH
)
async def remember_cache_entry(call: Call[RememberEntry]) -> Answer:
    """Get a value, or be the one who makes it.

    If it is missing or stale, one caller in the whole fleet is told `fill` and gets a reservation: it makes the value and brings
    it before `expires_at`. The others get the stale value at once if there is one, else they wait up to `wait_seconds`, and are
    told `filling` at the end. If the filler fails or is lost, the next who waits gets `fill`. If the answer was lost, send the
    same call with the same `claim_id`.
    """
    where, body = place(call), call.body
    value: Value | None = await call.runtime.lane("cache.read").submit(where.digest)
    if value is not None and (value.found is Found.FRESH or (value.filling and body.claim_id is None)):
        return _answer(Remembered(value.found, value))
    caller = Caller(call.principal, call.request_id)
    return _answer(await _remember(call, Remember(where, micros(body.lease_seconds), caller, body.claim_id)))


async def _remember(call: Call[RememberEntry], command: Remember) -> Remembered:
    lane = call.runtime.lane("cache.remember")
    if call.body.wait_seconds <= 0 or call.runtime.draining.is_set():
        at_once: Remembered = await lane.submit(command)
        return at_once
    left = watch(call)
    found: Remembered | None = await call.runtime.desks["cache"].claim(command, call.body.wait_seconds, left)
    if found is None:  # the wait is over: whatever there is now
        require_in_force(call)
        found = await lane.submit(command)
        if left() and found.found is Found.FILL:
            await call.runtime.lane("cache.give_back").submit(found)
    return found


def _answer(found: Remembered) -> Answer:
    until = None if found.expires_at is None else to_text(found.expires_at)
    fills, value = found.found is Found.FILL, found.value
    return Answer({
        "state": found.found.value,
        "value": None if value is None else msgspec.Raw(value.value),
        "age_seconds": None if value is None else seconds(value.age),
        "reservation": {"token": found.token, "fence": found.fence, "expires_at": until} if fills else None,
        "expires_at": None if fills else until,
        "replayed": found.replayed,
    })  # fmt: skip


@router.post(
    "/{namespace}/{key}/fill",
    name="fill_cache_entry",
    requires=USERS,
    answers=FilledEntry,
    refuses=(*LOST, PAYLOAD_TOO_LARGE),
    path=PATH,
)
async def fill_cache_entry(call: Call[FillEntry]) -> Answer:
    """Bring the value that you were told to make.

    All who wait for it get it. 409 `reservation_lost`: you come too late, or the entry was put, deleted or cleared meanwhile;
    the value is dropped. A repeat with the same token and content is answered as before (`replayed: true`).
    """
    body = call.body
    return await _fill(call, body.value, lasting(body.ttl_seconds), lasting(body.stale_seconds))


@router.post(
    "/{namespace}/{key}/fill-failed",
    name="fail_cache_fill",
    requires=USERS,
    answers=FilledEntry,
    refuses=LOST,
    path=PATH,
)
async def fail_cache_fill(call: Call[FailFill]) -> Answer:
    """Say that you could not make the value.

    The next who waits is told to `fill`. Where the policy says `on_failure: error`, a stale value is gone with it.
    """
    return await _fill(call, None)


async def _fill(call: Call[Any], value: bytes | None, ttl: int | None = None, stale: int | None = None) -> Answer:
    where = place(call)
    command = Fill(where, call.body.token, value, ttl, stale)
    filled: Filled = await call.runtime.lane("cache.fill").submit(command, size=call.body_size)
    return Answer({
        "namespace": where.namespace, "key": where.key, "fence": filled.fence, "replayed": filled.replayed,
    })  # fmt: skip
