"""`tenure serve`: one process that serves HTTP and, unless told otherwise, runs the sweeps."""

from __future__ import annotations

import socket
import sys

import click
import uvicorn

from app import settings as settings_module
from app.errors import StartupProblem
from app.http.auth import is_loopback, refuse_open_bind
from app.logs import configure
from app.main import create_app
from app.settings import Settings

GRACE_SECONDS = 20  # for requests that are being answered; waiting claims are answered at once


@click.command()
@click.option("--host", help="Address to listen on (TENURE_HOST).")
@click.option("--port", type=int, help="Port to listen on (TENURE_PORT); 0 takes a free one.")
@click.option("--no-loops", is_flag=True, help="Leave the sweeps to `tenure loops` processes.")
def command(host: str | None, port: int | None, no_loops: bool) -> None:
    """Serve HTTP until SIGTERM or SIGINT."""
    settings = settings_module.load(host=host, port=port)
    configure(settings)
    app = create_app(settings, loops=not no_loops)
    open_door = app.state.runtime.state("keys").open
    refuse_open_bind(settings, not open_door)
    listening = _listen(settings)
    _greet(settings, listening.getsockname()[1], open_door=open_door)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, date_header=False, proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS, timeout_keep_alive=75, lifespan="on", http="httptools",
        loop="uvloop", ws="none",
    )
    server = uvicorn.Server(config)
    server.run(sockets=[listening])
    sys.exit(0 if server.started else 1)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048, reuse_port=False)
    except OSError as fault:
        raise StartupProblem(f"cannot listen on {settings.host}:{settings.port}: {fault.strerror}") from None


def _greet(settings: Settings, port: int, *, open_door: bool) -> None:
    """What a newcomer needs to see, on the error stream; data goes to the standard output."""
    host = "127.0.0.1" if is_loopback(settings.host) or settings.host in ("0.0.0.0", "::") else settings.host
    base = settings.public_url or f"http://{host}:{port}"
    key = "" if open_door else " -H 'Authorization: Bearer <api key>'"
    lines = [f"Tenure listens on {base}   (docs: {base}/docs)"]
    if open_door:
        lines.append("There is no API key yet: only calls from this machine are served. Make one: tenure keys create")
    lines.append(f"""Try: curl{key} --json '{{"queue":"hello","type":"greet","payload":{{"name":"Ada"}}}}' {base}/v1/jobs""")
    click.echo("\n".join(lines), err=True)
