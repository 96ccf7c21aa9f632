"""`tenure keys`: API keys over HTTP, or with `--direct` on the database itself (the first key; when no key works).

The secret is printed once, alone on the standard output, so that it can be sent to a file or a secret store.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from app.access import Role
from app.cli import show
from app.cli.ages import Age
from app.cli.client import Client
from app.clock import MICROS, to_text

COLUMNS = {
    "id": "id", "name": "name", "roles": "roles", "patterns": "names", "state": "state", "expires_at": "expires",
    "last_used_at": "last used",
}  # fmt: skip
DIRECT = "On the database of TENURE_DATABASE_URL instead of over HTTP."
JSON = "Answer as one JSON document."


@click.group()
def command() -> None:
    """Create, list and revoke API keys.

    Over HTTP: TENURE_URL names the service, TENURE_API_KEY or TENURE_API_KEY_FILE a key with the role admin.
    """


@command.command()
@click.option("--name", required=True, help="Who will use it; for people.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    type=click.Choice([str(role) for role in Role]),
    help="May be repeated.",
)
@click.option(
    "--pattern", "patterns", multiple=True, help="Limit it to these names, such as 'billing.*'; may be repeated."
)
@click.option("--expires-in", type=Age(least=1), help="After so long it is refused: 90s, 15m, 12h, 30d.")
@click.option("--direct", "directly", is_flag=True, help=DIRECT)
@click.option("--json", "as_json", is_flag=True, help=JSON)
def create(
    name: str,
    roles: Sequence[str],
    patterns: Sequence[str],
    expires_in: int | None,
    directly: bool,  # noqa: FBT001 - click passes flags so
    as_json: bool,  # noqa: FBT001
) -> None:
    """Create a key and print its secret, which is not shown again."""
    if directly:
        from app.cli import direct  # noqa: PLC0415 - slow to import

        made = direct.create_key(name, roles, patterns, expires_in)
    else:
        body: dict[str, Any] = {"name": name, "roles": list(roles), "patterns": list(patterns)}
        if expires_in is not None:
            body["expires_at"] = to_text((int(time.time()) + expires_in) * MICROS)
        with Client() as client:
            made = client.post("/v1/api-keys", body)
    if as_json:
        show.document(made)
        return
    until = f", until {made['expires_at']}" if made["expires_at"] else ""
    show.note(
        f"Made the key {made['id']} ({', '.join(made['roles'])}{until}). This is its secret; it is not shown again:"
    )
    click.echo(made["key"])


@command.command("list")
@click.option("--direct", "directly", is_flag=True, help=DIRECT)
@click.option("--json", "as_json", is_flag=True, help=JSON)
def list_(directly: bool, as_json: bool) -> None:  # noqa: FBT001
    """List all keys, newest first, without their secrets; revoked ones stay."""
    if directly:
        from app.cli import direct  # noqa: PLC0415

        items, now = direct.list_keys()
    else:
        with Client() as client:
            items, now = client.every("/v1/api-keys"), to_text(int(time.time()) * MICROS)
    if as_json:
        show.document({"items": items})
        return
    show.table(COLUMNS, [{**item, "state": _state(item, now)} for item in items])


@command.command()
@click.argument("key_id", metavar="ID")
@click.option("--direct", "directly", is_flag=True, help=DIRECT)
@click.option("--json", "as_json", is_flag=True, help=JSON)
def revoke(key_id: str, directly: bool, as_json: bool) -> None:  # noqa: FBT001
    """Revoke a key for good; in force within 3 seconds on every replica. May be repeated."""
    if not (key_id.isascii() and key_id.isalnum()):
        raise click.UsageError("an id has letters and digits only: the part of a key between its first and second `_`")
    if directly:
        from app.cli import direct  # noqa: PLC0415

        revoked = direct.revoke_key(key_id)
    else:
        with Client() as client:
            revoked = client.delete(f"/v1/api-keys/{key_id}")
    if as_json:
        show.document(revoked)
        return
    show.note(f"The key {key_id} ({revoked['name']}) {'was revoked before' if revoked['replayed'] else 'is revoked'}.")


def _state(item: dict[str, Any], now: str) -> str:
    if item["revoked_at"]:
        return "revoked"
    return "expired" if item["expires_at"] and item["expires_at"] <= now else "in force"
