"""What is sent and answered about API keys. No answer but that of `create_api_key` holds a secret."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from app.access import PATTERN, Role
from app.http.paging import PageRead
from app.jsontext import Body, Label, Moment, Read

KeyId = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z]{12}$")]
Pattern = Annotated[str, StringConstraints(pattern=PATTERN, min_length=1, max_length=128)]


class CreateApiKey(Body):
    """A key to make. The first one must have the role `admin`."""

    name: Label = Field(description="For people: who uses it.", examples=["billing worker"])
    roles: Annotated[list[Role], Field(min_length=1, max_length=5)] = Field(
        description="`producer`, `worker`, `viewer`, `operator` (includes viewer), `admin` (includes all).",
        examples=[["worker"]],
    )
    patterns: Annotated[list[Pattern], Field(max_length=30)] = Field(
        default_factory=list,
        description="Limits the key to these names of queues, destinations, locks and namespaces; `*` stands for any "
        "characters. Empty: every name.",
        examples=[["billing.*"]],
    )
    expires_at: Moment | None = Field(None, description="From this moment on it is refused; null: never.")


class ApiKeyRead(Read):
    """A key without its secret."""

    id: str
    name: str
    roles: list[str]
    patterns: list[str]
    created_at: Moment
    expires_at: Moment | None
    revoked_at: Moment | None
    last_used_at: Moment | None = Field(description="Right to a minute.")


class ApiKeyCreated(ApiKeyRead):
    """A key just made."""

    key: str = Field(description="The key itself. It is shown only here.", examples=["tnr_<id>_<secret>"])


class ApiKeyRevoked(ApiKeyRead):
    """A key that is revoked."""

    replayed: bool = Field(description="True if it had been revoked before.")


class ApiKeyPage(PageRead):
    """Keys, newest first; revoked ones stay in the list."""

    items: list[ApiKeyRead]
