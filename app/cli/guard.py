"""`tenure outbox guard`: a development mode in which the database refuses intents that are written outside of a transaction.

It works on the database itself, as `tenure migrate` does.
"""

from __future__ import annotations

import click

from app.cli import show

JSON = click.option("--json", "as_json", is_flag=True, help="Answer as one JSON document.")


@click.group()
def command() -> None:
    """Let the database refuse an INSERT into the outbox outside of a transaction; for development.

    docs/outbox.md tells what each server can tell. Exit 2 where it cannot.
    """


@command.command()
@JSON
def on(as_json: bool) -> None:  # noqa: FBT001 - click passes flags so
    """Put the guard on. May be repeated."""
    _turn(as_json=as_json, on=True)


@command.command()
@JSON
def off(as_json: bool) -> None:  # noqa: FBT001
    """Take the guard off. May be repeated."""
    _turn(as_json=as_json, on=False)


@command.command()
@JSON
def status(as_json: bool) -> None:  # noqa: FBT001
    """Tell whether the guard is on, and what it refuses."""
    from app.cli import direct  # noqa: PLC0415 - slow to import

    found = direct.read_guard()
    _tell(on=found.on, refuses=found.refuses, as_json=as_json)


def _turn(*, on: bool, as_json: bool) -> None:
    from app.cli import direct  # noqa: PLC0415 - slow to import

    done = direct.turn_guard(on=on)
    _tell(on=done.on, refuses=done.refuses, as_json=as_json)


def _tell(*, on: bool, refuses: str, as_json: bool) -> None:
    if as_json:
        show.document({"guard": "on" if on else "off", "refuses": refuses if on else None})
        return
    click.echo(f"guard on: refuses {refuses}" if on else "guard off")
