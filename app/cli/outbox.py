"""`tenure outbox`: messages over HTTP for operators, and the development guard on the database."""

from __future__ import annotations

import click

from app.cli import guard


@click.group()
def command() -> None:
    """Count, list and show messages, decide about them; the development guard.

    TENURE_URL names the service, TENURE_API_KEY or TENURE_API_KEY_FILE a key: viewers look, operators decide.
    """


command.add_command(guard.command, "guard")
