"""The way past HTTP: the same ops on the database itself, for the first key and for when no key works any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app import settings as settings_module
from app.access import Principal, Role
from app.cli.failure import of_problem
from app.db.database import Database
from app.db.tx import Op
from app.errors import Refusal
from app.http.problem import problem_of
from app.logs import set_up
from app.main import open_database

REQUEST_ID = "command-line"
OPERATOR = Principal("command-line", "command line", frozenset({Role.ADMIN}))
"""Who acts, for the audit: whoever can read the database's password may do everything anyway."""


@contextmanager
def database() -> Iterator[Database]:
    """The database of TENURE_DATABASE_URL; the embedded one is migrated, others must be. Raises: StartupProblem."""
    settings = settings_module.load()
    set_up("warning", settings.log_format)
    opened = open_database(settings)
    try:
        yield opened
    finally:
        opened.shutdown()


def run(on: Database, op: Op, command: Any) -> Any:
    """The outcome of one command. Raises: CommandFailed if the op refuses it."""
    try:
        (outcome,) = on.run(op, [command])
    except Refusal as refusal:
        outcome = refusal
    if isinstance(outcome, Refusal):
        raise of_problem(problem_of(outcome, REQUEST_ID), outcome.http_status)
    return outcome
