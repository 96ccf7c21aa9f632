"""`tenure loops`: the sweeps alone, for installations that keep them apart from HTTP."""

from __future__ import annotations

import asyncio
import signal

import click

from app import settings as settings_module
from app.logs import set_up
from app.main import assemble, open_database
from app.settings import Settings


@click.command()
def command() -> None:
    """Run every sweep of this release until SIGTERM or SIGINT. Any number of such processes may run."""
    settings = settings_module.load()
    set_up(settings.log_level, settings.log_format)
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    database = open_database(settings)
    runtime = assemble(settings, database, loops=True)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runtime.draining.set)
    await runtime.start()
    click.echo(f"Tenure runs {len(runtime.loops)} loops", err=True)
    try:
        await runtime.draining.wait()
    finally:
        await runtime.stop()
        await asyncio.to_thread(database.shutdown)
