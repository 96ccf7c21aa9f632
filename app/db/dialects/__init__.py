"""One file for each database; `choose` picks by what the server says of itself, never by the URL alone."""

from __future__ import annotations

from sqlalchemy import Engine

from app.db.dialects.base import Dialect
from app.db.dialects.mariadb import MariaDB
from app.db.dialects.mysql import MySQL
from app.db.dialects.postgresql import PostgreSQL
from app.db.dialects.sqlite import SQLite
from app.errors import StartupProblem

BACKENDS = ("sqlite", "mysql", "mariadb", "postgresql")


def for_url(backend: str, *, sqlite_synchronous: str = "FULL") -> Dialect:
    """The dialect that a URL's backend name promises, to connect with."""
    if backend not in BACKENDS:
        raise StartupProblem(
            f"TENURE_DATABASE_URL names {backend!r}; it must be one of {', '.join(BACKENDS)}", exit_code=2
        )
    if backend == "sqlite":
        return SQLite(sqlite_synchronous)
    return {"mysql": MySQL, "mariadb": MariaDB, "postgresql": PostgreSQL}[backend]()


def choose(promised: Dialect, engine: Engine) -> Dialect:
    """The dialect that the server really is, seen after the first connection (MariaDB often sits behind `mysql://`)."""
    maria = getattr(engine.dialect, "is_mariadb", False)
    if isinstance(promised, MySQL) and maria != isinstance(promised, MariaDB):
        return MariaDB() if maria else MySQL()
    return promised
