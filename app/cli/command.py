"""The group `tenure` and the list of its commands. Each is imported only when it is run, so that `--help` is quick."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from app import __version__

# name -> (module, one line)
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("app.cli.serve", "Serve HTTP."),
    "loops": ("app.cli.loops", "Run the sweeps alone, without HTTP."),
    "migrate": ("app.cli.migrate", "Bring the database schema up to this release."),
    "check": ("app.cli.check", "Check settings, database, durability, clock; exit 7 if something is wrong."),
    "keys": ("app.cli.keys", "Create, list and revoke API keys."),
    "contracts": ("app.cli.contracts", "Check, register and list what job types promise; compare it with practice."),
    "outbox": ("app.cli.outbox", "Count, list and show messages, decide about them; the development guard."),
    "lock": ("app.cli.lock", "List and break locks; run a command while holding one."),
    "cache": ("app.cli.cache", "List namespaces of the cache; clear one."),
    "healthcheck": ("app.cli.healthcheck", "Ask a running service whether it is ready (for containers)."),
    "openapi": ("app.cli.openapi", "Print the OpenAPI document."),
}

EPILOG = (
    "Exit codes: 0 done; 1 failed; 2 wrong usage or setting; 3 the schema is behind, or no such thing; 4 conflict; "
    "5 key missing or not allowed; 6 service or database away; 7 a check found something; 130 interrupted."
)

EXIT_INTERRUPTED = 130


class Lazy(click.Group):
    """Loads a command's module when the command is asked for."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        found: click.Command = import_module(COMMANDS[name][0]).command
        return found

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.command(cls=Lazy, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tenure")
def tenure() -> None:
    """Durable jobs and coordination over HTTP, in the database that you already run.

    Settings come from TENURE_* variables; docs/settings.md lists them all.
    """
