"""Types that several of the jobs' models are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MOST_ITEMS = 1000
Version = Annotated[int, Field(ge=1, le=2_147_483_647)]
# no control characters: PostgreSQL keeps no NUL in a text
Reference = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
