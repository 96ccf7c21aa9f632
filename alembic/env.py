"""What `alembic` runs, from the command line and from `tenure migrate` alike. All of it is in app/db/migrate.py."""

from __future__ import annotations

from alembic import context

from app.db import migrate

if context.is_offline_mode():
    migrate.run_offline(context)
else:
    migrate.run_online(context)
