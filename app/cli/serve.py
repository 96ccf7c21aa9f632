"""`tenure serve`: one process that serves HTTP and, unless told otherwise, runs the sweeps."""

from __future__ import annotations

import signal
import socket
import sys
from typing import Any

import click
import uvicorn

from app import settings as settings_module
from app.cli.keyfile import with_own_key
from app.errors import StartupProblem
from app.http.auth import is_loopback, refuse_open_bind
from app.http.protocol import Protocol
from app.logs import set_up
from app.main import create_app
from app.primitives.keys import ops as keys
from app.runtime.runtime import Runtime
from app.settings import Settings

GRACE_SECONDS = 20  # for requests that are being answered; waiting claims are answered at once
ANYWHERE = ("0.0.0.0", "::", "")


@click.command()
@click.option("--host", help="Address to listen on (TENURE_HOST).")
@click.option("--port", type=int, help="Port to listen on (TENURE_PORT); 0 takes a free one.")
@click.option("--no-loops", is_flag=True, help="Leave the sweeps to `tenure loops` processes.")
def command(host: str | None, port: int | None, no_loops: bool) -> None:  # noqa: FBT001 - click passes flags so
    """Serve HTTP until SIGTERM or SIGINT."""
    settings = settings_module.load(host=host, port=port)
    for line in settings_module.unknown():
        click.echo(f"tenure: warning: {line}", err=True)
    set_up(settings.log_level, settings.log_format)
    listening = _listen(settings)  # first, for it is quick: a taken port is told before the database is touched
    app = create_app(with_own_key(settings), loops=not no_loops)
    open_door = not _has_keys(app.state.runtime)
    refuse_open_bind(settings, has_keys=not open_door)
    _greet(settings, listening.getsockname()[1], open_door=open_door)
    server = uvicorn.Server(uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS, timeout_keep_alive=75, lifespan="on", http=Protocol,
        loop="uvloop", ws="none", backlog=2048,
    ))  # fmt: skip
    _end_well_on_signals(server)
    server.run(sockets=[listening])
    sys.exit(0 if server.started else 1)


def _has_keys(runtime: Runtime) -> bool:
    """Whether an API key was ever made, as the directory will know in a moment; revoked ones count."""
    found = bool(runtime.database.read(keys.all_keys, None))
    runtime.database.close()
    return found


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as fault:
        raise StartupProblem(f"cannot listen on {settings.host} port {settings.port}: {fault.strerror}") from None


def _end_well_on_signals(server: uvicorn.Server) -> None:
    """A signal ends the server in good order; at the very end it raises the signal again, for whoever listened before it.
    That is us: without this the process would then be killed by the signal instead of exiting with 0.
    """

    def ended(_number: int, _frame: Any) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ended)


def _greet(settings: Settings, port: int, *, open_door: bool) -> None:
    """What a newcomer needs to see, on the error stream; data goes to the standard output."""
    host = "127.0.0.1" if is_loopback(settings.host) or settings.host in ANYWHERE else settings.host
    base = settings.public_url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
    key = "" if open_door else " -H 'Authorization: Bearer <api key>'"
    lines = [f"Tenure listens on {base}   (docs: {base}/docs)"]
    if open_door:
        lines.append(
            "There is no API key yet: only calls from this machine are served. Make one: tenure keys create --help"
        )
    lines.append(
        f"""Try: curl{key} --json '{{"queue":"hello","type":"greet","payload":{{"name":"Ada"}}}}' {base}/v1/jobs"""
    )
    click.echo("\n".join(lines), err=True)
