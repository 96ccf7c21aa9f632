"""The way past HTTP: the same ops on the database itself, for the first key and for when no key works any more.

Slow to import, because it brings the whole service: commands import it only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from pydantic import ValidationError

from app import settings as settings_module
from app.access import Principal, Role
from app.cli.failure import FAILED, USAGE, CommandFailed, of_problem
from app.clock import MICROS, to_text
from app.db.database import Database
from app.db.faults import DatabaseBug
from app.db.tx import Op
from app.errors import Refusal
from app.http.problem import problem_of
from app.logs import set_up
from app.main import open_database
from app.primitives.audit.model import new_id
from app.primitives.keys import ops
from app.primitives.keys.model import ApiKey, Create, Revoke, mint
from app.primitives.keys.schemas import CreateApiKey
from app.primitives.outbox.ops import guard

REQUEST_ID = "command-line"
OPERATOR = Principal("command-line", "command line", frozenset({Role.ADMIN}))
"""Who acts, for the audit: whoever can read the database's password may do everything anyway."""


def create_key(name: str, roles: Sequence[str], patterns: Sequence[str], expires_in: int | None) -> dict[str, Any]:
    """The new key with its secret. Raises: click.UsageError before anything is touched."""
    wanted, new = _valid(name, roles, patterns), mint()
    with _database() as database:
        expires_at = None if expires_in is None else database.clock.now() + expires_in * MICROS
        kept_roles, kept_patterns = tuple(dict.fromkeys(wanted.roles)), tuple(dict.fromkeys(wanted.patterns))
        command = Create(
            new.id, new.digest, wanted.name, kept_roles, kept_patterns, expires_at, OPERATOR, REQUEST_ID, new_id()
        )
        key = _run(database, ops.create, command)
    return {**_view(key), "key": new.text}


def list_keys() -> tuple[list[dict[str, Any]], str]:
    """Every key, newest first, and the database's time."""
    with _database() as database:
        found = sorted(database.read(ops.all_keys, None), key=lambda key: (key.created_at, key.id), reverse=True)
        return [_view(key) for key in found], to_text(database.clock.now())


def revoke_key(key_id: str) -> dict[str, Any]:
    with _database() as database:
        done = _run(database, ops.revoke, Revoke(key_id, OPERATOR, REQUEST_ID, new_id()))
    return {**_view(done.key), "replayed": done.replayed}


def turn_guard(*, on: bool) -> guard.Guard:
    """Put the development guard of the outbox on, or take it off. Raises: CommandFailed where a trigger cannot tell."""
    _require_guards()
    with _database() as database:
        try:
            done: guard.Guard = _run(database, guard.turn, guard.Turn(on))
        except DatabaseBug as fault:
            raise CommandFailed(
                f"the database refused it ({fault.code}): this account has not the rights, see docs/outbox.md", FAILED
            ) from None
    if done.blind:
        raise CommandFailed(
            "performance_schema of this server does not watch transactions, so that a trigger cannot tell whether an INSERT "
            "stands in one; the guard was not put on",
            USAGE,
        )
    return done


def read_guard() -> guard.Guard:
    _require_guards()
    with _database() as database:
        found: guard.Guard = database.read(guard.read, None)
    return found


def _require_guards() -> None:
    """Looked at before anything is opened: the embedded database belongs to the service while that runs."""
    dialect = Database(settings_module.load().database_url.get_secret_value()).dialect
    if not dialect.triggers_see_transactions:
        raise CommandFailed(
            "the embedded SQLite database shows no trigger whether its statement stands in a transaction: there is no guard; "
            "develop on the database that you will run on",
            USAGE,
        )


@contextmanager
def _database() -> Iterator[Database]:
    """The database of TENURE_DATABASE_URL; the embedded one is migrated, others must be. Raises: StartupProblem."""
    settings = settings_module.load()
    set_up("warning", settings.log_format)
    opened = open_database(settings)
    try:
        yield opened
    finally:
        opened.shutdown()


def _run(on: Database, op: Op, command: Any) -> Any:
    """The outcome of one command. Raises: CommandFailed if the op refuses it."""
    try:
        (outcome,) = on.run(op, [command])
    except Refusal as refusal:
        outcome = refusal
    if isinstance(outcome, Refusal):
        raise of_problem(problem_of(outcome, REQUEST_ID), outcome.http_status)
    return outcome


def _valid(name: str, roles: Sequence[str], patterns: Sequence[str]) -> CreateApiKey:
    """What the service would check."""
    try:
        return CreateApiKey(name=name, roles=[Role(role) for role in roles], patterns=list(patterns), expires_at=None)
    except ValidationError as wrong:
        first = wrong.errors(include_input=False, include_url=False)[0]
        raise click.UsageError(f"--{str(first['loc'][0]).removesuffix('s')}: {first['msg']}") from None


def _view(key: ApiKey) -> dict[str, Any]:
    """As over HTTP."""
    moments = {name: getattr(key, name) for name in ("created_at", "expires_at", "revoked_at", "last_used_at")}
    return {
        "id": key.id, "name": key.name, "roles": [str(role) for role in key.roles], "patterns": list(key.patterns),
        **{name: None if moment is None else to_text(moment) for name, moment in moments.items()},
    }  # fmt: skip
