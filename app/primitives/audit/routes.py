"""Reading the audit."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from app.access import Role
from app.clock import to_text
from app.http.call import Answer, Call
from app.http.paging import page, place
from app.http.routing import thin_router
from app.primitives.audit.model import Filter
from app.primitives.audit.schemas import AuditPage, AuditParams

router = thin_router("/v1", tags=["operations"])


@router.get(
    "/audit", name="list_audit", requires=Role.OPERATOR, answers=AuditPage, response_description="A page of the audit."
)
async def list_audit(call: Call[None, AuditParams]) -> Answer:
    """List who did what, when and why.

    Newest first. Each entry was committed together with what it tells of.
    """
    query = call.query
    after = place(call, "audit", (bytes,))
    rows = await call.runtime.lane("audit.list").submit(
        Filter(
            query.limit,
            None if after is None else after[0],
            query.actor,
            query.action,
            query.kind,
            query.target,
            query.created_after,
            query.created_before,
        )
    )
    return Answer(page(call, "audit", rows, _view, lambda row: (bytes(row.id),)))


def _view(row: Any) -> dict[str, Any]:
    return {
        "id": str(UUID(bytes=bytes(row.id))),
        "at": to_text(row.at),
        "actor": row.actor,
        "actor_name": row.actor_name,
        "action": row.action,
        "kind": row.kind,
        "target": row.target,
        "reason": row.reason,
        "request_id": row.request_id,
        "details": msgspec.Raw(bytes(row.details)),
    }
