"""What the audit answers, and by what it can be filtered."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from app.http.paging import PageParams, PageRead
from app.jsontext import Key, Moment, Name, Read


class AuditParams(PageParams):
    """Filters of the audit; all that are given must fit."""

    actor: Name | None = Field(None, description="Id of the API key that acted.")
    action: Name | None = Field(None, description="For example `jobs.cancel`.", examples=["api_keys.revoke"])
    kind: Name | None = Field(None, description="Kind of the thing that was acted on, for example `queue`.")
    target: Key | None = Field(None, description="Id or name of the thing; give `kind` with it.")
    created_after: Moment | None = Field(None, description="At this moment or later.")
    created_before: Moment | None = Field(None, description="Before this moment.")


class AuditEntryRead(Read):
    """One deed of an operator."""

    id: str
    at: Moment
    actor: str = Field(description="Id of the API key, or `anonymous`.")
    actor_name: str = Field(description="The key's name at that time.")
    action: str
    kind: str
    target: str
    reason: str | None
    request_id: str | None = Field(description="Names the request in the logs.")
    details: dict[str, Any] = Field(description="What else there is to know; depends on the action.")


class AuditPage(PageRead):
    """Entries, newest first."""

    items: list[AuditEntryRead]
