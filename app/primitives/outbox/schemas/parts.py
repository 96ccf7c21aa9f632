"""Types that several of the outbox's models are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MOST_ITEMS = 1000
Version = Annotated[int, Field(ge=1, le=2_147_483_647)]
# no control characters: PostgreSQL keeps no NUL in a text
Reference = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
Url = Annotated[str, Field(min_length=1, max_length=2000)]
ID = "0198c5a2-5f00-7c3e-9d6b-0b5f3a8d1e2f"
AT = "2026-01-31T08:30:00.000000Z"
