"""Policies of namespaces."""

from __future__ import annotations

from typing import Any

from app.access import Caller, Role
from app.clock import micros, seconds, to_text
from app.errors import NOT_FOUND
from app.http.call import Answer, Call
from app.http.paging import cursor, place
from app.http.routing import thin_router
from app.ids import new_id
from app.primitives.cache.model import Filter, Namespace, OnFailure, Policy, PutPolicy
from app.primitives.cache.routes.entries import USERS, lasting
from app.primitives.cache.schemas import (
    CachePolicyListRead,
    CachePolicyRead,
    ListPoliciesParams,
    NamespaceName,
    PutCachePolicy,
)

router = thin_router("/v1/cache-policies", tags=["cache"])

PATH = {"namespace": NamespaceName}
READERS = (Role.WORKER, Role.VIEWER)
_NONE = Policy(None, 0, None, OnFailure.SERVE_STALE, None, None)


@router.put("/{namespace}", name="put_cache_policy", requires=USERS, answers=CachePolicyRead, path=PATH)
async def put_cache_policy(call: Call[PutCachePolicy]) -> Answer:
    """Set the rules of a namespace: what is stored by default, how much, and what version its values have.

    A `version` other than before takes all values of the namespace away at once. What is left out has its default. May be
    repeated. Audited.
    """
    body, namespace = call.body, call.path["namespace"]
    call.principal.require_names([namespace])
    policy = Policy(
        lasting(body.ttl_seconds),
        micros(body.stale_seconds),
        body.version,
        OnFailure[body.on_failure.name],
        body.max_entries,
        body.max_bytes,
    )
    command = PutPolicy(namespace, policy, Caller(call.principal, call.request_id), new_id())
    return Answer(_view(await call.runtime.lane("cache.put_policy").submit(command)))


@router.get(
    "/{namespace}",
    name="get_cache_policy",
    requires=READERS,
    answers=CachePolicyRead,
    refuses=(NOT_FOUND,),
    path=PATH,
)
async def get_cache_policy(call: Call) -> Answer:
    """Get the rules of a namespace, and how much it holds.

    404 `not_found` if it has none.
    """
    namespace = call.path["namespace"]
    call.principal.require_names([namespace])
    return Answer(_view(await call.runtime.lane("cache.get_policy").submit(namespace)))


@router.get("", name="list_cache_policies", requires=READERS, answers=CachePolicyListRead)
async def list_cache_policies(call: Call[None, ListPoliciesParams]) -> Answer:
    """List namespaces with their rules and how much they hold, by name.

    Also those without a policy, whose `updated_at` is null.
    """
    after = place(call, "cache-policies", (str,))
    wanted = Filter(call.query.limit, None if after is None else after[0], call.principal)
    found, following = await call.runtime.lane("cache.list").submit(wanted)
    return Answer({
        "items": [_view(one) for one in found],
        "next_cursor": None if following is None else cursor(call, "cache-policies", (following,)),
    })  # fmt: skip


def _view(namespace: Namespace) -> dict[str, Any]:
    policy = namespace.policy or _NONE
    return {
        "namespace": namespace.name,
        "ttl_seconds": None if policy.ttl is None else seconds(policy.ttl),
        "stale_seconds": seconds(policy.stale),
        "version": policy.version,
        "on_failure": policy.on_failure.name.lower(),
        "max_entries": policy.max_entries,
        "max_bytes": policy.max_bytes,
        "updated_at": None if namespace.policy_at is None else to_text(namespace.policy_at),
        "entries": namespace.entries,
        "bytes": namespace.bytes,
    }
