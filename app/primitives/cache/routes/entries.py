"""Values: put, get, delete; and clearing a namespace."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from app.access import Caller, Role
from app.clock import MICROS, micros, seconds, to_text
from app.errors import NOT_FOUND, PAYLOAD_TOO_LARGE, STATE_CONFLICT, not_found
from app.http.bodies import header
from app.http.call import Answer, Call
from app.http.routing import thin_router
from app.ids import new_id
from app.jsontext import Key
from app.primitives.cache.model import Clear, Found, Place, Put, Stored, Value, place_of
from app.primitives.cache.schemas import (
    ClearedNamespace,
    DeletedEntry,
    EntryRead,
    NamespaceName,
    PutEntry,
    StoredEntry,
)

router = thin_router("/v1/cache", tags=["cache"])

PATH = {"namespace": NamespaceName, "key": Key}
REVALIDATE = "private, no-cache"  # a client may keep it, and asks each time whether it is still so
USERS = (Role.WORKER, Role.OPERATOR)


def place(call: Call[Any, Any]) -> Place:
    """Where the call's entry stands, if its key covers the namespace."""
    namespace = call.path["namespace"]
    call.principal.require_names([namespace])
    return place_of(namespace, call.path["key"])


@router.put(
    "/{namespace}/{key}",
    name="put_cache_entry",
    requires=USERS,
    answers=StoredEntry,
    refuses=(STATE_CONFLICT, PAYLOAD_TOO_LARGE),
    path=PATH,
)
async def put_cache_entry(call: Call[PutEntry]) -> Answer:
    """Put a value, in place of whatever is there.

    It is fresh for `ttl_seconds`, and then stale for `stale_seconds`. Whoever fills the entry meanwhile comes too late. May be
    repeated. A key is percent-encoded in the path, `/` as `%2F`. 409 `state_conflict`: the namespace has another version now.
    """
    where, body = place(call), call.body
    command = Put(where, body.value, lasting(body.ttl_seconds), lasting(body.stale_seconds), body.version)
    stored: Stored = await call.runtime.lane("cache.put").submit(command, size=call.body_size)
    return Answer({
        "namespace": where.namespace,
        "key": where.key,
        "version": stored.version,
        "expires_at": to_text(stored.fresh_until),
        "stale_until": to_text(stored.stale_until),
    })  # fmt: skip


def lasting(given: float | None) -> int | None:
    return None if given is None else micros(given)


@router.get(
    "/{namespace}/{key}",
    name="get_cache_entry",
    requires=USERS,
    answers=EntryRead,
    refuses=(NOT_FOUND,),
    bare={304: "You have this value, in this state."},
    headers={
        "ETag": "Of the value and its state, for `If-None-Match`.",
        "Age": "Whole seconds since it was stored.",
        "Cache-Control": "Keep it if you like, and ask each time.",
    },
    path=PATH,
)
async def get_cache_entry(call: Call) -> Answer:
    """Get a value, fresh or stale.

    404 `not_found` if there is none. Send the `ETag` of the answer that you have as `If-None-Match`, and you get 304 while the
    value and its state are the same. To have a missing value made by one caller only, use `remember`.
    """
    where = place(call)
    value: Value | None = await call.runtime.lane("cache.read").submit(where.digest)
    if value is None:
        raise not_found("cache entry")
    tag = _tag(value)
    headers = {"ETag": tag, "Age": str(value.age // MICROS), "Cache-Control": REVALIDATE}
    if _has(header(call.scope, b"if-none-match"), tag):
        return Answer(b"", status=304, headers=headers)
    return Answer(
        {
            "value": msgspec.Raw(value.value),
            "state": value.found.value,
            "age_seconds": seconds(value.age),
            "version": value.version,
            "expires_at": to_text(value.fresh_until),
            "stale_until": to_text(value.stale_until),
        },
        headers=headers,
    )


def _tag(value: Value) -> str:
    """Weak: the age that stands beside the value is left out of it."""
    said = hashlib.sha256(f"{value.version or ''}\0".encode() + value.value).hexdigest()[:32]
    return f'W/"{said}{"-stale" if value.found is Found.STALE else ""}"'


def _has(sent: bytes | None, tag: str) -> bool:
    """Whether `If-None-Match` names this tag, in the weak comparison of RFC 9110."""
    if sent is None:
        return False
    named = [one.strip().removeprefix("W/") for one in sent.decode("latin-1").split(",")]
    return "*" in named or tag.removeprefix("W/") in named


@router.delete("/{namespace}/{key}", name="delete_cache_entry", requires=USERS, answers=DeletedEntry, path=PATH)
async def delete_cache_entry(call: Call) -> Answer:
    """Take a value away.

    Whoever fills the entry meanwhile comes too late. May be repeated: `deleted` says whether there was a value.
    """
    where = place(call)
    deleted: bool = await call.runtime.lane("cache.delete").submit(where)
    return Answer({"namespace": where.namespace, "key": where.key, "deleted": deleted})


@router.delete(
    "/{namespace}",
    name="clear_cache_namespace",
    requires=USERS,
    answers=ClearedNamespace,
    path={"namespace": NamespaceName},
)
async def clear_cache_namespace(call: Call) -> Answer:
    """Take all values of a namespace away, at once.

    It costs the same whatever the namespace holds, and no other one is touched. Fillings that are under way come too late. May
    be repeated. Its policy stays. Audited.
    """
    namespace = call.path["namespace"]
    call.principal.require_names([namespace])
    command = Clear(namespace, Caller(call.principal, call.request_id), new_id())
    cleared: int = await call.runtime.lane("cache.clear").submit(command)
    return Answer({"namespace": namespace, "cleared": cleared})
