"""The commands of `tenure outbox` that change many messages: each may be looked at first, and asks before it does anything."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Any

import click

from app.cli import show
from app.cli.ages import Age
from app.cli.client import Client
from app.clock import MICROS, to_text

LIMIT = click.option(
    "--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Change at most so many."
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only count what it would change, as of now.")
YES = click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
JSON = click.option("--json", "as_json", is_flag=True, help="Answer as one JSON document.")
COUNTS = {"destination": "destination", "type": "type", "count": "messages"}


@dataclass(frozen=True, slots=True)
class Change:
    """One such command. `filters` and `before` (a field, and an age in seconds) find by the list what it would change."""

    path: str
    body: dict[str, Any]
    asks: str
    done: str
    filters: dict[str, str | None]
    before: tuple[str, int] | None = None


@click.command()
@click.option("--destination", help="Only for this destination.")
@click.option("--type", "type_", help="Only of this type.")
@LIMIT
@DRY_RUN
@YES
@JSON
def requeue(
    destination: str | None,
    type_: str | None,
    limit: int,
    dry_run: bool,  # noqa: FBT001 - click passes flags so
    yes: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> None:
    """Send dead messages after all, with a fresh budget of attempts."""
    named = {name: value for name, value in (("destination", destination), ("type", type_)) if value is not None}
    change = Change(
        "/v1/outbox/requeue", {**named, "limit": limit}, "Send dead messages again", "are to be sent again",
        {"state": "dead", "destination": destination, "type": type_},
    )  # fmt: skip
    _carry_out(change, dry_run=dry_run, yes=yes, as_json=as_json)


@click.command("release-stale")
@click.option(
    "--claimed-before", required=True, type=Age(), help="Claimed at least so long ago; longer than the slowest sending."
)
@LIMIT
@DRY_RUN
@YES
@JSON
def release_stale(
    claimed_before: int,
    limit: int,
    dry_run: bool,  # noqa: FBT001
    yes: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> None:
    """Take messages from holders that have had them for too long, whatever their leases say.

    Those of idempotent destinations are pending again; the others become unknown.
    """
    change = Change(
        "/v1/outbox/release-stale", {"claimed_before_seconds": claimed_before, "limit": limit},
        "Take messages from their holders", "were taken from their holders", {"state": "sending"},
        ("claimed_at", claimed_before),
    )  # fmt: skip
    _carry_out(change, dry_run=dry_run, yes=yes, as_json=as_json)


@click.command()
@click.option("--state", required=True, type=click.Choice(["sent", "dead", "aborted"]), help="Only in this state.")
@click.option("--older-than", required=True, type=Age(), help="Ended at least so long ago: 12h, 30d.")
@LIMIT
@DRY_RUN
@YES
@JSON
def purge(
    state: str,
    older_than: int,
    limit: int,
    dry_run: bool,  # noqa: FBT001
    yes: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> None:
    """Forget ended messages with their keys, before their retention is over. Unknown ones are never purged."""
    change = Change(
        "/v1/outbox/purge", {"state": state, "older_than_seconds": older_than, "limit": limit},
        f"Forget {state} messages for good", "are forgotten", {"state": state}, ("ended_at", older_than),
    )  # fmt: skip
    _carry_out(change, dry_run=dry_run, yes=yes, as_json=as_json)


COMMANDS = (requeue, release_stale, purge)


def _carry_out(change: Change, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    if not dry_run:
        _ask(change, yes=yes)
    with Client() as client:
        if dry_run:
            _foretell(client, change, as_json=as_json)
            return
        done = client.post(change.path, change.body)
    if as_json:
        show.document(done)
        return
    unknown = f", {done['unknown']} of them are unknown now" if done["unknown"] else ""
    more = "; there may be more" if done["changed"] == change.body["limit"] else ""
    show.note(f"{done['changed']} messages {change.done}{unknown}{more}.")


def _ask(change: Change, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("say --yes, or look first with --dry-run")
    click.confirm(f"{change.asks}, at most {change.body['limit']}?", abort=True, err=True)


def _foretell(client: Client, change: Change, *, as_json: bool) -> None:
    """By the list, and this host's clock: messages move meanwhile, so that it is a count and no promise."""
    found = client.each("/v1/outbox/messages", **change.filters)
    if change.before is not None:
        field, seconds = change.before
        latest = to_text((int(time.time()) - seconds) * MICROS)
        found = (one for one in found if one[field] is not None and one[field] <= latest)
    counts = Counter((one["destination"], one["type"]) for one in islice(found, change.body["limit"]))
    rows = [{"destination": name, "type": type_, "count": count} for (name, type_), count in sorted(counts.items())]
    if as_json:
        show.document({"dry_run": True, "matched": counts.total(), "items": rows})
        return
    show.table(COUNTS, rows)
    show.note(f"{counts.total()} messages, at most {change.body['limit']}; nothing was changed.")
