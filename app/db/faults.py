"""What is told of a database error. A driver's text may hold values and passwords: it is never logged and never raised on."""

from __future__ import annotations

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from app.errors import DATABASE_UNAVAILABLE, Refusal


class DatabaseBug(Exception):
    """A statement that the database will not take, however often it is sent. Carries the statement, never its values."""

    def __init__(self, error: DBAPIError) -> None:
        statement = " ".join((error.statement or "").split())[:500]
        super().__init__(
            f"{kind(error)} {code(error)} in: {statement}" if statement else f"{kind(error)} {code(error)}"
        )
        self.code = code(error)


class CommitUnanswered(Exception):
    """COMMIT failed. `error` is the driver's."""

    def __init__(self, error: DBAPIError) -> None:
        super().__init__(code(error))
        self.error = error


class NotConnected(Exception):
    """No connection could be opened. `error` is the driver's."""

    def __init__(self, error: DBAPIError) -> None:
        super().__init__(code(error))
        self.error = error


def kind(error: DBAPIError) -> str:
    return type(error.orig).__name__


def code(error: DBAPIError) -> str:
    """The number or SQLSTATE of the error, or "" where the driver gives none."""
    orig = error.orig
    number = orig.args[0] if orig is not None and orig.args else ""
    if isinstance(number, int):  # says more than the SQLSTATE, which is HY000 for most of them
        return str(number)
    named = getattr(orig, "sqlstate", None) or getattr(orig, "sqlite_errorname", None)
    return str(named)[:64] if named else ""


def place(url: URL) -> str:
    """Where a database is, without the account, the password and the options."""
    port = f":{url.port}" if url.port else ""
    return f"{url.get_backend_name()}://{url.host or ''}{port}/{url.database or ''}"


def unavailable() -> Refusal:
    return Refusal(
        DATABASE_UNAVAILABLE,
        "The database did not answer in time; nothing is lost by trying again.",
        retry_after_seconds=1,
    )
