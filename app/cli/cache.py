"""`tenure cache`: namespaces of the cache."""

from __future__ import annotations

import re
import sys
from urllib.parse import quote

import click

from app.cli import show
from app.cli.client import Client

_NAMESPACE = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
JSON = click.option("--json", "as_json", is_flag=True, help="Answer as one JSON document.")
LIST = {
    "namespace": "namespace", "entries": "entries", "bytes": "bytes", "version": "version", "ttl_seconds": "ttl",
    "stale_seconds": "stale", "max_entries": "max entries", "max_bytes": "max bytes",
}  # fmt: skip


@click.group()
def command() -> None:
    """List namespaces of the cache; clear one.

    Over HTTP: TENURE_URL names the service, TENURE_API_KEY or TENURE_API_KEY_FILE a key. Viewers look, operators clear.
    """


@command.command("list")
@JSON
def list_(as_json: bool) -> None:  # noqa: FBT001 - click passes flags so
    """List namespaces, with what they hold and the rules that they have."""
    with Client() as client:
        found = client.every("/v1/cache-policies")
    if as_json:
        show.document({"items": found})
    else:
        show.table(LIST, found)


@command.command()
@click.argument("namespace")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
@JSON
def clear(namespace: str, yes: bool, as_json: bool) -> None:  # noqa: FBT001
    """Take all values of NAMESPACE away, at once. No other namespace is touched."""
    if not _NAMESPACE.fullmatch(namespace) or namespace in (".", ".."):
        raise click.UsageError("a namespace has 1 to 128 characters of A-Z a-z 0-9 . _ : - and is not `.` or `..`")
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask: add --yes")
        click.confirm(f"Take all values of {namespace} away?", abort=True, err=True)
    with Client() as client:
        done = client.delete(f"/v1/cache/{quote(namespace, safe='')}")
    if as_json:
        show.document(done)
    else:
        show.note(f"Cleared: {done['cleared']} values.")
