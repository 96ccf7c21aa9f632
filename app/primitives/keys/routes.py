"""Making, listing and revoking API keys. Only an admin whose key is not limited to names may."""

from __future__ import annotations

from typing import Any

from app.access import Role
from app.clock import to_text
from app.errors import FORBIDDEN, NOT_FOUND, Refusal
from app.http.call import Answer, Call
from app.http.paging import PageParams, page, place
from app.http.routing import thin_router
from app.primitives.audit.model import new_id
from app.primitives.keys.model import ApiKey, Create, Revoke, mint
from app.primitives.keys.schemas import ApiKeyCreated, ApiKeyPage, ApiKeyRevoked, CreateApiKey, KeyId

router = thin_router("/v1", tags=["operations"])


@router.post(
    "/api-keys",
    name="create_api_key",
    status_code=201,
    requires=Role.ADMIN,
    answers=ApiKeyCreated,
    response_description="The key; its secret is shown only here.",
)
async def create_api_key(call: Call[CreateApiKey]) -> Answer:
    """Make an API key.

    In force within 3 seconds on every replica. Not repeatable: if the answer was lost, so is the secret; find the key by
    its name, revoke it and make another.
    """
    _require_unlimited(call)
    body, new = call.body, mint()
    key = await call.runtime.lane("keys.create").submit(
        Create(
            new.id,
            new.digest,
            body.name,
            tuple(dict.fromkeys(body.roles)),
            tuple(dict.fromkeys(body.patterns)),
            body.expires_at,
            call.principal,
            call.request_id,
            new_id(),
        )
    )
    await _refresh(call)
    return Answer({**_view(key), "key": new.text})


@router.get(
    "/api-keys", name="list_api_keys", requires=Role.ADMIN, answers=ApiKeyPage, response_description="A page of keys."
)
async def list_api_keys(call: Call[None, PageParams]) -> Answer:
    """List API keys, without their secrets. Newest first; revoked ones stay."""
    _require_unlimited(call)
    after = place(call, "api_keys", (int, str))
    rows = await call.runtime.lane("keys.list").submit((call.query.limit, after))
    return Answer(page(call, "api_keys", rows, _view, lambda key: (key.created_at, key.id)))


@router.delete(
    "/api-keys/{key_id}",
    name="revoke_api_key",
    requires=Role.ADMIN,
    answers=ApiKeyRevoked,
    refuses=(NOT_FOUND,),
    path={"key_id": KeyId},
    response_description="The key, revoked.",
)
async def revoke_api_key(call: Call) -> Answer:
    """Revoke an API key for good.

    In force within 3 seconds on every replica. May be repeated: then `replayed` is true. Revoking the last key does not
    open the service; `tenure keys create --direct` makes a new one.
    """
    _require_unlimited(call)
    revoked = await call.runtime.lane("keys.revoke").submit(
        Revoke(call.path["key_id"], call.principal, call.request_id, new_id())
    )
    await _refresh(call)
    return Answer({**_view(revoked.key), "replayed": revoked.replayed})


def _require_unlimited(call: Call[Any, Any]) -> None:
    """A key that is limited to names could else make itself an unlimited one."""
    if call.principal.patterns:
        raise Refusal(FORBIDDEN, "A key that is limited to names may not manage keys.", {"reason": "name_pattern"})


async def _refresh(call: Call[Any, Any]) -> None:
    """Let this replica know at once. What was committed stands, so a fault here is the loop's to mend."""
    try:
        await call.runtime.state("keys").refresh()
    except Refusal:
        return


def _view(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "roles": key.roles,
        "patterns": key.patterns,
        "created_at": to_text(key.created_at),
        "expires_at": _moment(key.expires_at),
        "revoked_at": _moment(key.revoked_at),
        "last_used_at": _moment(key.last_used_at),
    }


def _moment(moment: int | None) -> str | None:
    return None if moment is None else to_text(moment)
