"""`tenure lock`: list and break locks, and run a command under one."""

from __future__ import annotations

import click

from app.cli import show
from app.cli.client import Client
from app.cli.lockrun import run

JSON = click.option("--json", "as_json", is_flag=True, help="Answer as one JSON document.")
LIST = {
    "name": "name", "state": "state", "owner": "owner", "fence": "fence", "acquired_at": "acquired", "expires_at": "expires",
    "waiters": "waiters",
}  # fmt: skip


@click.group()
def command() -> None:
    """List and break locks; run a command while holding one.

    Over HTTP: TENURE_URL names the service, TENURE_API_KEY or TENURE_API_KEY_FILE a key. Viewers look, operators break,
    workers run.
    """


@command.command("list")
@click.option("--state", type=click.Choice(["held", "free"]), default="held", show_default=True)
@JSON
def list_(state: str, as_json: bool) -> None:  # noqa: FBT001 - click passes flags so
    """List locks, with who has them, until when, and how many wait."""
    with Client() as client:
        found = client.every("/v1/locks", state=state)
    if as_json:
        show.document({"items": found})
    else:
        show.table(LIST, found)


@command.command("break")
@click.argument("name")
@click.option("--reason", required=True, help="For the audit.")
@click.option(
    "--fence", type=click.IntRange(0), help="Only the reservation with this fence, so that a repeat hits no other."
)
@JSON
def break_(name: str, reason: str, fence: int | None, as_json: bool) -> None:  # noqa: FBT001
    """Take a lock from its holder, whose token is worth nothing from then on. What it does is not stopped."""
    with Client() as client:
        done = client.post("/v1/locks/break", {"name": name, "reason": reason, "fence": fence})
    if as_json:
        show.document(done)
    elif done["broken"]:
        show.note(f"Broken: {done['owner']} held it with fence {done['fence']}.")
    else:
        show.note("Nothing to break: it is not held" + (" with this fence." if fence is not None else "."))


command.add_command(run)
