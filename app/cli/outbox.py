"""`tenure outbox`: messages over HTTP for operators, and the development guard on the database."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any
from uuid import UUID

import click

from app.cli import guard, messages, show
from app.cli.client import Client
from app.primitives.outbox.model.states import STATE_NAMES, Verdict

JSON = click.option("--json", "as_json", is_flag=True, help="Answer as one JSON document.")
ID = click.argument("message_id", metavar="ID", type=click.UUID)
STATS = {
    "destination": "destination", **{name: name for name in STATE_NAMES},
    "oldest": "oldest pending", "needs_operator": "needs operator",
}  # fmt: skip
LIST = {
    "id": "id", "message_key": "key", "destination": "destination", "type": "type", "state": "state", "attempt": "attempt",
    "category": "category", "available_at": "available", "needs_operator": "needs operator",
}  # fmt: skip
EVENTS = {
    "at": "at", "kind": "event", "attempt": "attempt", "worker": "worker", "category": "category", "actor": "actor",
    "message": "message",
}  # fmt: skip
FIELD = {"field": "field", "value": "value"}


@click.group()
def command() -> None:
    """Count, list and show messages, decide about them; the development guard.

    Over HTTP: TENURE_URL names the service, TENURE_API_KEY or TENURE_API_KEY_FILE a key. Viewers look, operators decide.
    """


@command.command()
@JSON
def stats(as_json: bool) -> None:  # noqa: FBT001 - click passes flags so
    """Count messages by destination and state, and the rows that producers wrote wrongly by SQL."""
    with Client() as client:
        found = client.get("/v1/outbox/stats")
    if as_json:
        show.document(found)
        return
    show.table(STATS, [_figures(one) for one in found["destinations"]])
    if found["set_aside"]:
        show.note(
            f"{found['set_aside']} rows that were written by SQL are set aside: docs/outbox.md tells how to mend them."
        )


@command.command("list")
@click.option("--destination", help="Only for this destination.")
@click.option("--type", "type_", help="Only of this type.")
@click.option("--state", type=click.Choice(list(STATE_NAMES)), help="Only in this state.")
@click.option("--key", help="Only the one with this message key.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most so many.")
@JSON
def list_(
    destination: str | None,
    type_: str | None,
    state: str | None,
    key: str | None,
    limit: int,
    as_json: bool,  # noqa: FBT001
) -> None:
    """List messages, newest first, without their payloads."""
    filters = {"destination": destination, "type": type_, "state": state, "message_key": key}
    with Client() as client:
        found = list(islice(client.each("/v1/outbox/messages", **filters), limit + 1))
    items, more = found[:limit], len(found) > limit
    if as_json:
        show.document({"items": items, "more": more})
        return
    show.table(LIST, items)
    if more:
        show.note(f"There are more than {limit}.")


@command.command("show")
@ID
@click.option("--payload", is_flag=True, help="With its payload; needs the role operator.")
@JSON
def show_(message_id: UUID, payload: bool, as_json: bool) -> None:  # noqa: FBT001
    """Show one message with all that happened to it."""
    with Client() as client:
        found = client.get(f"/v1/outbox/messages/{message_id}", include="payload" if payload else None)
    if as_json:
        show.document(found)
        return
    events = found.pop("events")
    show.table(FIELD, [{"field": name, "value": _value(value)} for name, value in found.items() if value is not None])
    click.echo()
    show.table(EVENTS, events)


@command.command()
@ID
@click.option(
    "--verdict", required=True, type=click.Choice([str(one) for one in Verdict]),
    help="sent: it was accepted; retry: it was not, send it; dead: give it up.",
)  # fmt: skip
@click.option(
    "--evidence",
    required=True,
    metavar="JSON",
    help="""How you know: any JSON value, such as '"seen in their list"'.""",
)
@click.option("--provider-operation-id", help="What the destination knows the effect by.")
@click.option("--reason", help="In words, for people.")
@JSON
def reconcile(
    message_id: UUID,
    verdict: str,
    evidence: str,
    provider_operation_id: str | None,
    reason: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Give the verdict on a message that is unknown. The first verdict stands; the same may be repeated."""
    told = {"verdict": verdict, "provider_operation_id": provider_operation_id, "reason": reason}
    with Client() as client:
        done = client.post(f"/v1/outbox/messages/{message_id}/reconcile", _with_evidence(told, evidence))
    if as_json:
        show.document(done)
        return
    show.note(f"{'This verdict stood before' if done['replayed'] else 'Done'}: the message is {done['state']}.")


def _with_evidence(told: dict[str, Any], evidence: str) -> bytes:
    """The body, with the evidence as it was written: it is kept byte for byte."""
    try:
        json.loads(evidence)
    except ValueError:
        raise click.UsageError(
            """--evidence must be a JSON value; quote words twice: --evidence '"seen in their list"'"""
        ) from None
    head = json.dumps({name: value for name, value in told.items() if value is not None}, ensure_ascii=False)
    return f'{head[:-1]}, "evidence": {evidence}}}'.encode(errors="surrogateescape")


def _figures(one: dict[str, Any]) -> dict[str, Any]:
    age = one["oldest_pending_age_seconds"]
    return {**one, **one["counts"], "oldest": None if age is None else f"{age:.0f}s"}


def _value(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


command.add_command(guard.command, "guard")
for each in messages.COMMANDS:
    command.add_command(each)
