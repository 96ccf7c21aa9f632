"""Run as a program: upgrade, and die by SIGKILL just before the n-th statement that changes the schema or its version."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import Any

from sqlalchemy import Engine, event

from app.db import migrate

_CHANGES = re.compile(r"\s*(CREATE (TABLE|INDEX|UNIQUE)|(INSERT INTO|UPDATE) \w*alembic_version)", re.IGNORECASE)


def main(url: str, left: int) -> None:
    @event.listens_for(Engine, "before_cursor_execute")
    def _count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal left
        if _CHANGES.match(statement):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    migrate.upgrade(url)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
