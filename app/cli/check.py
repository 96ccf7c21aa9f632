"""`tenure check`: is this installation fit to serve? Looks at settings, database, schema, durability, connections and clock.

It changes nothing but a probe row that it removes again. A running service answers the same kind of question at `/health`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click

from app import settings as settings_module
from app.cli import show
from app.cli.failure import AWAY, FOUND, CommandFailed
from app.clock import MICROS
from app.db import migrate
from app.db.database import Database
from app.errors import Refusal, StartupProblem
from app.logs import set_up
from app.registry import PRIMITIVES
from app.runtime.checks import Status
from app.runtime.runtime import Runtime
from app.runtime.service import SERVICE_LANES
from app.settings import Settings

MOST_OFFSET_SECONDS = 5.0
CONNECTIONS_A_THREAD = 2
COLUMNS = {"name": "check", "status": "status", "figure": "figure", "seen": "what was seen"}


@dataclass(frozen=True, slots=True)
class Seen:
    """One thing that was looked at."""

    name: str
    status: Status
    figure: float | str | None
    seen: str = ""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Answer as one JSON document.")
def command(as_json: bool) -> None:  # noqa: FBT001 - click passes flags so
    """Check settings, database, durability, connections and clock. Exit 7 if something is wrong, 6 without a database."""
    settings = settings_module.load()
    set_up("error", settings.log_format)
    checks = [Seen("settings", "pass", None, "all valid")]
    database = Database(settings.database_url.get_secret_value(), sqlite_synchronous=settings.sqlite_synchronous)
    try:
        database.open()
    except StartupProblem as problem:
        raise CommandFailed(str(problem), problem.exit_code if problem.exit_code != 1 else AWAY) from None
    try:
        checks += _all(database, settings)
    except Refusal as refusal:
        raise CommandFailed(f"the database went away meanwhile: {refusal.code.name}", AWAY) from None
    finally:
        database.shutdown()
    _report(checks, as_json=as_json)


def _all(database: Database, settings: Settings) -> Iterator[Seen]:
    known = database.capabilities
    yield Seen("database", "pass", f"{known['engine']} {known['server_version']}".strip(), "answers")
    yield _schema(database)
    yield _skip_locked(database)
    for name, good, seen in database.server_checks():
        yield Seen(name, "pass" if good else "fail", None, seen)
    yield _connections(database, settings)
    yield _clock(database)


def _schema(database: Database) -> Seen:
    state = migrate.state(database)
    if state in ("current", "ahead"):
        return Seen("schema", "pass", state)
    if database.dialect.single_writer:
        return Seen("schema", "pass", state, "`tenure serve` migrates the embedded database at its start")
    return Seen("schema", "fail", state, "run `tenure migrate`")


def _skip_locked(database: Database) -> Seen:
    verdict = database.capabilities["skip_locked"]
    if verdict in ("yes", "not needed"):
        return Seen("skip_locked", "pass", verdict)
    if verdict == "unproven":
        return Seen("skip_locked", "warn", verdict, "shows itself only on a migrated schema")
    return Seen("skip_locked", "warn", verdict, "this server does not skip locked rows: replicas wait for each other")


def _connections(database: Database, settings: Settings) -> Seen:
    """What one process may open at once against what the server takes from everybody."""
    runtime = Runtime(settings, database)
    runtime.add_lanes(SERVICE_LANES)
    for primitive in PRIMITIVES:
        runtime.add_lanes(primitive.lanes)
    needed, most = runtime.threads * CONNECTIONS_A_THREAD, database.most_connections()
    if most is None:
        return Seen("connections", "pass", needed, "the embedded database sets no limit")
    said = f"each process opens up to {needed}, the server takes {most}: enough for {most // needed} processes"
    return Seen("connections", "pass" if needed <= most else "fail", needed, said)


def _clock(database: Database) -> Seen:
    """Leases go by the database's clock alone; but people compare its times with those of this host's logs."""
    database.measure_clock()
    offset = (database.clock.now() - time.time_ns() // 1000) / MICROS
    close = abs(offset) <= MOST_OFFSET_SECONDS
    said = "the database's clock against this host's, in seconds"
    return Seen("clock_offset", "pass" if close else "warn", round(offset, 3), said)


def _report(checks: list[Seen], *, as_json: bool) -> None:
    worst = "fail" if any(one.status == "fail" for one in checks) else "warn"
    found = [one for one in checks if one.status != "pass"]
    items = [asdict(one) for one in checks]
    if as_json:
        show.document({"status": worst if found else "pass", "checks": items})
    else:
        show.table(COLUMNS, items)
        show.note(f"{len(found)} of {len(checks)} checks found something." if found else "All is well.")
    if found:
        raise SystemExit(FOUND)
