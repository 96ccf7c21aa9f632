"""`tenure healthcheck`: for containers that have no curl."""

from __future__ import annotations

import click
import httpx

from app.cli.client import base_url
from app.cli.failure import AWAY


@click.command()
@click.option("--url", help="Base URL of the service (TENURE_URL; else TENURE_HOST and TENURE_PORT).")
@click.option("--live", is_flag=True, help="Ask only whether the process lives (/livez) instead of /readyz.")
@click.option("--timeout-seconds", type=float, default=3.0, show_default=True)
def command(*, url: str | None, live: bool, timeout_seconds: float) -> None:
    """Exit 0 if the service is ready, else 6 with the reason."""
    base = (url or base_url()).rstrip("/")
    try:
        answer = httpx.get(f"{base}/{'livez' if live else 'readyz'}", timeout=timeout_seconds, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as fault:
        click.echo(f"no answer from {base}: {type(fault).__name__}", err=True)
        raise SystemExit(AWAY) from None
    click.echo(answer.text)
    if answer.status_code != httpx.codes.OK:
        raise SystemExit(AWAY)
