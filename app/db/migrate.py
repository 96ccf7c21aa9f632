"""Migrations: run them, and say where a database stands. The revisions are in alembic/versions (app/migrations when installed).

A replica only checks; `tenure migrate` (or plain `alembic upgrade head`) changes. A revision that this release does not know
and that is newer than its own is fine: a release runs on the schema of the next one.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import structlog
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, Connection, String, column, select
from sqlalchemy import table as table_of
from sqlalchemy.exc import DBAPIError

from alembic import command
from app import settings
from app.db import engines
from app.db.database import Database
from app.db.ddl import BEFORE_DDL
from app.db.dialects.base import Dialect, Fault
from app.db.faults import code, kind, place
from app.db.metadata import named
from app.db.migration_lock import held
from app.db.tx import Tx
from app.errors import StartupProblem

log = structlog.get_logger("tenure.migrations")

State = Literal["current", "behind", "ahead", "empty"]
VERSION_TABLE = named("alembic_version")
TRIES = 3
URL_KEY = "tenure_url"

# alembic keeps the migration that runs in module globals
_one_at_a_time = threading.Lock()


def upgrade(url: str, *, revision: str = "head") -> None:
    """Bring the schema to `revision`. Any number of processes may start this at once: one works, the others wait for it.

    Guarantee: run again after whatever cut it short, it converges. Raises: StartupProblem when a long transaction keeps
    the tables busy, when another migration does not end, or (SQLite) when another process owns the file.
    """
    _run_command(command.upgrade, url, revision)


def downgrade(url: str, *, revision: str) -> None:
    """Take the schema back to `revision`. It drops data; for tests and for undoing a trial."""
    _run_command(command.downgrade, url, revision)


def _run_command(verb: Callable[[Config, str], None], url: str, revision: str) -> None:
    with _one_at_a_time:
        try:
            verb(_config(url), revision)
        except CommandError as fault:
            raise StartupProblem(f"the schema was not migrated: {fault}") from None


@cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(folder()))


def folder() -> Path:
    """Where env.py and the revisions are: inside the installed package, or in the source tree beside it."""
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "migrations", package.parent / "alembic"):
        if (candidate / "env.py").exists():
            return candidate
    raise StartupProblem("the migrations are missing from this installation")


def required() -> str:
    """The newest revision of this release."""
    head = _scripts().get_current_head()
    if head is None:
        raise StartupProblem("the migrations are missing from this installation")
    return head


def current(database: Database) -> str | None:
    """The revision that the database is at; None if it was never migrated."""
    revision: str | None = database.read(read_revision, None)
    return revision


def state(database: Database) -> State:
    """Where the database stands, seen from this release. "ahead" is fine to run on, "behind" and "empty" are not."""
    return compare(current(database))


def compare(revision: str | None) -> State:
    """Revisions are named by date, so that one which this release does not know is still told newer from older."""
    if revision is None:
        return "empty"
    if revision == required():
        return "current"
    return "ahead" if revision > required() else "behind"


def read_revision(tx: Tx, _command: None = None) -> str | None:
    """What the version table says; None without one. A reading op."""
    if not tx.conn.dialect.has_table(tx.conn, VERSION_TABLE):
        return None
    found: str | None = tx.conn.scalar(select(column("version_num", String)).select_from(table_of(VERSION_TABLE)))
    return found


def _config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes[URL_KEY] = url  # an option would be read with % as a placeholder
    return config


# -- called by alembic/env.py ------------------------------------------------------------------------------------------


def run_online(context: Any) -> None:
    """Run what the alembic command asks for; under the migration lock if it changes the schema."""
    url = _url(context)
    try:
        _run_online(context, url)
    except DBAPIError as error:
        raise StartupProblem(
            f"the migration of {place(url)} stopped: {kind(error)} {code(error)}; run it again when that is mended"
        ) from None


def _run_online(context: Any, url: URL) -> None:
    dialect = engines.recognise(url)
    if not _changes_schema(context):
        _run(context, dialect, url, {})
        return
    with held(dialect, url) as lock:
        _run_in_tries(
            context, dialect, url, {BEFORE_DDL: lock.check, "on_version_apply": [_log_step, lambda **_: lock.check()]}
        )


def run_offline(context: Any) -> None:
    """Print the SQL (`alembic upgrade head --sql`). It is not guarded: nothing can be looked at."""
    url = _url(context)
    context.configure(url=url, version_table=VERSION_TABLE, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


def _url(context: Any) -> URL:
    given = context.config.attributes.get(URL_KEY)
    return engines.parse(given or settings.load().database_url.get_secret_value())


def _changes_schema(context: Any) -> bool:
    try:
        context.get_revision_argument()
    except KeyError:
        return False
    return True


def _run_in_tries(context: Any, dialect: Dialect, url: URL, options: dict[str, Any]) -> None:
    for attempt in range(1, TRIES + 1):
        try:
            _run(context, dialect, url, options)
            return
        except DBAPIError as error:
            if dialect.classify(error, at_commit=False) is not Fault.RETRY:
                raise
            log.warning("migration_waits_for_tables", attempt=attempt)
            if attempt == TRIES:
                raise StartupProblem(
                    "the tables are in use by a long transaction, so the migration gave up; nothing is broken: "
                    "end that transaction and run the migration again"
                ) from None
            time.sleep(random.uniform(0.2, 1.0))  # lets those through who queued behind us


def _run(context: Any, dialect: Dialect, url: URL, options: dict[str, Any]) -> None:
    engine = engines.make(dialect, url, "ddl")
    with engine.connect() as connection:
        if options and context.get_revision_argument() == required() and _is_ahead(connection):
            return
        context.configure(
            connection=connection,
            version_table=VERSION_TABLE,
            transactional_ddl=dialect.transactional_ddl,
            transaction_per_migration=True,
            **options,
        )
        with context.begin_transaction():
            context.run_migrations()


def _is_ahead(connection: Connection) -> bool:
    found = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    connection.rollback()  # or alembic would take our reading transaction for its own and never commit
    ahead = compare(found) == "ahead"
    if ahead:
        log.info("schema_is_newer", revision=found, required=required())
    return ahead


def _log_step(*, step: Any, **_: Any) -> None:
    log.info("migrated", up=step.is_upgrade, revision=step.up_revision_id)
