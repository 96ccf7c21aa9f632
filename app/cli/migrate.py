"""`tenure migrate`: the one command that changes the schema."""

from __future__ import annotations

import json

import click

from app import settings as settings_module
from app.db import migrate as migrations
from app.db.database import Database
from app.logs import set_up

EXIT_BEHIND = 3


@click.command()
@click.option("--check", is_flag=True, help="Only say where the schema stands; exit 3 if it is behind.")
@click.option("--json", "as_json", is_flag=True, help="Answer as JSON.")
def command(*, check: bool, as_json: bool) -> None:
    """Bring the schema up to this release. Any number of these may start at once: one works, the others wait."""
    settings = settings_module.load()
    set_up(settings.log_level, settings.log_format)
    url = settings.database_url.get_secret_value()
    if not check:
        migrations.upgrade(url)
    database = Database(url, sqlite_synchronous=settings.sqlite_synchronous)
    database.open()
    try:
        found = {
            "state": migrations.state(database),
            "revision": migrations.current(database),
            "required": migrations.required(),
        }
    finally:
        database.shutdown()
    click.echo(
        json.dumps(found) if as_json else f"schema {found['state']}: at {found['revision']}, needs {found['required']}"
    )
    if check and found["state"] in ("behind", "empty"):
        raise SystemExit(EXIT_BEHIND)
