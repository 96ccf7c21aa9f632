"""`tenure healthcheck`: for containers that have no curl."""

from __future__ import annotations

import os

import click
import httpx

EXIT_AWAY = 6


@click.command()
@click.option("--url", help="Base URL of the service (TENURE_URL; else TENURE_HOST and TENURE_PORT).")
@click.option("--live", is_flag=True, help="Ask only whether the process lives (/livez) instead of /readyz.")
@click.option("--timeout-seconds", type=float, default=3.0, show_default=True)
def command(url: str | None, live: bool, timeout_seconds: float) -> None:
    """Exit 0 if the service is ready, else 6 with the reason."""
    host = os.environ.get("TENURE_HOST", "127.0.0.1")
    near = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    base = url or os.environ.get("TENURE_URL") or f"http://{near}:{os.environ.get('TENURE_PORT', '8080')}"
    try:
        answer = httpx.get(f"{base}/{'livez' if live else 'readyz'}", timeout=timeout_seconds, trust_env=False)
    except httpx.HTTPError as fault:
        click.echo(f"no answer from {base}: {type(fault).__name__}", err=True)
        raise SystemExit(EXIT_AWAY) from None
    click.echo(answer.text)
    if answer.status_code != httpx.codes.OK:
        raise SystemExit(EXIT_AWAY)
