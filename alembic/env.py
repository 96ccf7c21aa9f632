"""What `alembic` runs, from the command line and from `tenure migrate` alike. All of it is in app/db/migrate.py."""

from __future__ import annotations

from alembic.util import CommandError

from alembic import context
from app.db import migrate
from app.errors import StartupProblem

if context.is_offline_mode():
    migrate.run_offline(context)
else:
    try:
        migrate.run_online(context)
    except StartupProblem as problem:
        if context.config.cmd_opts is None:
            raise
        raise CommandError(str(problem)) from None  # the command line prints one line of it
