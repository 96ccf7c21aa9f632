"""`tenure lock run`: hold a lock while a command runs."""

from __future__ import annotations

import os
import random
import secrets
import socket
import threading
from collections.abc import Sequence
from typing import Any

import click

from app.cli.ages import SECONDS, Age
from app.cli.client import Client
from app.cli.failure import AWAY, CONFLICT, MISSING, CommandFailed
from app.cli.lease import Lease, now
from app.cli.supervise import NotStarted, Supervised

LOST, NOT_ACQUIRED, NO_SERVICE = 122, 123, 125  # apart from what commands and shells usually give
MOST_WAIT_SECONDS = 30.0  # of one call; a longer wait is several, which keep their place
MOST_PAUSE_SECONDS = 5.0


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--ttl",
    type=Age(5, SECONDS["d"]),
    default=30,
    show_default="30s",
    help="Length of the lease; it is renewed all the time.",
)
@click.option("--wait", type=Age(), default=0, show_default="0s", help="Stand in line for the lock for so long.")
@click.option("--owner", help="Who holds it, for people; host and process number unless said.")
@click.option(
    "--grace", type=Age(1), help="What the command gets to end when the lock is lost; a third of the lease at most."
)
@click.option(
    "--conflict-exit-code", type=click.IntRange(0, 255), default=NOT_ACQUIRED, show_default=True,
    help="What to end with if another has the lock; 0 for work that somebody else then does.",
)  # fmt: skip
@click.pass_context
def run(
    context: click.Context,
    name: str,
    command: Sequence[str],
    ttl: int,
    wait: int,
    owner: str | None,
    grace: int | None,
    conflict_exit_code: int,
) -> None:
    """Run COMMAND while holding the lock NAME:  tenure lock run nightly -- /usr/local/bin/report --all

    The lock is renewed while the command runs and released when it ends. Signals are forwarded to the command and all that it has
    started. If the lock is lost, or cannot be renewed before its lease ends, the command gets SIGTERM, and SIGKILL after that.
    The command finds TENURE_LOCK_NAME and TENURE_LOCK_FENCE in its environment: hand the fence to what it writes to.

    Exit codes: the command's own (128 and the signal's number if a signal ended it); 122 the lock was lost; 123 another has it;
    125 Tenure could not be asked; 126 the command cannot be run; 127 there is no such command.
    """
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise click.UsageError("there is no command to run")
    most = ttl / 3
    grace_seconds = min(float(grace), most) if grace is not None else min(10.0, most)
    holder = owner or f"{socket.gethostname()}:{os.getpid()}"[:128]
    with Client(timeout=min(MOST_WAIT_SECONDS, ttl / 3) + 1) as client:
        try:
            held, since = _Acquiring(client, name, holder, ttl, wait).run()
        except CommandFailed as failed:
            failed.exit_code = conflict_exit_code if failed.exit_code == CONFLICT else NO_SERVICE  # type: ignore[misc]
            raise
        context.exit(_run_under(client, held, since, ttl, grace_seconds, words))


class _Acquiring:
    """Asks for the lock, again and again under one claim, so that a lost answer and a long wait keep what they have."""

    def __init__(self, client: Client, name: str, owner: str, ttl: int, wait: int) -> None:
        self._client = client
        self._deadline = now() + wait
        self._body = {"name": name, "owner": owner, "ttl_seconds": ttl, "claim_id": secrets.token_urlsafe(24)}

    def run(self) -> tuple[Any, float]:
        """What was acquired, and when the call for it was sent. Raises: CommandFailed."""
        pause = 0.2
        while True:
            left, asked = self._deadline - now(), now()
            try:
                return self._client.post("/v1/locks/acquire", self._body | {"wait_seconds": self._wait(left)}), asked
            except CommandFailed as failed:
                if failed.exit_code not in (CONFLICT, AWAY) or now() >= self._deadline:
                    raise
                if failed.exit_code == CONFLICT:
                    pause = 0.2
                    continue  # it has waited as long as one call may; the next keeps its place
            threading.Event().wait(min(pause * random.uniform(0.5, 1), max(0.0, self._deadline - now())))
            pause = min(MOST_PAUSE_SECONDS, pause * 2)

    def _wait(self, left: float) -> float:
        most = min(MOST_WAIT_SECONDS, self._body["ttl_seconds"] / 3)  # type: ignore[operator]  # a number, among texts
        return round(max(0.0, min(most, left)), 3)


def _run_under(client: Client, held: Any, since: float, ttl: int, grace_seconds: float, command: Sequence[str]) -> int:
    name, token = held["name"], held["reservation"]["token"]
    holds = {"name": name, "token": token}
    lease = Lease(lambda: client.post("/v1/locks/renew", holds | {"ttl_seconds": ttl}), ttl, since)
    environment = os.environ | {"TENURE_LOCK_NAME": name, "TENURE_LOCK_FENCE": str(held["reservation"]["fence"])}
    supervised = Supervised(command, environment, lease, grace_seconds)
    lease.start()
    try:
        code = supervised.run()
    except NotStarted as fault:
        click.echo(f"tenure: {fault}", err=True)
        code = fault.exit_code
    lease.stop()
    return _release(client, holds, lease, code)


def _release(client: Client, holds: dict[str, str], lease: Lease, code: int) -> int:
    """Let go of it. If it was not held to the end, the command may have run beside another."""
    if lease.lost:
        return LOST
    try:
        client.post("/v1/locks/release", holds)
    except CommandFailed as failed:
        click.echo(f"tenure: the lock was not released: {failed.message}", err=True)
        if failed.exit_code in (CONFLICT, MISSING):
            return LOST
        click.echo(f"tenure: it ends by itself within {max(0.0, lease.seconds_left()):.0f} s", err=True)
    return code
