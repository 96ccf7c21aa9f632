"""What a database's schema is, as text that can be compared: with every type, collation, default and index."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from sqlalchemy import Connection, MetaData, NullPool, create_engine, make_url, text

import app
from app.db import engines
from app.db.metadata import metadata


def all_metadata() -> MetaData:
    """Every table of the service, also those of a primitive that nobody has registered yet."""
    root = Path(app.__file__).parent
    for path in sorted(root.glob("**/tables.py")):
        import_module(".".join(("app", *path.relative_to(root).with_suffix("").parts)))
    return metadata


def create_all(url: str) -> None:
    """Make the schema from the table definitions, as no installation does."""
    place = make_url(url)
    with engines.make(engines.recognise(place), place, "ddl").begin() as connection:
        all_metadata().create_all(connection)


def schema(url: str, *, prefix: str = "tenure_") -> dict[str, list[str]]:
    """Table (without the version table) to what the engine itself says of it, in an order that does not depend on age."""
    with create_engine(url, poolclass=NullPool).connect() as connection:
        describe = {"sqlite": _sqlite, "postgresql": _postgresql}.get(connection.dialect.name, _mysql)
        names = [name for name in connection.dialect.get_table_names(connection) if name.startswith(prefix)]
        return {name: describe(connection, name) for name in sorted(names) if not name.endswith("alembic_version")}


def _sqlite(connection: Connection, table: str) -> list[str]:
    rows = connection.execute(
        text("SELECT sql FROM sqlite_master WHERE tbl_name = :t AND sql IS NOT NULL"), {"t": table}
    )
    return sorted(re.sub(r"\s+", " ", sql) for sql in rows.scalars())


def _mysql(connection: Connection, table: str) -> list[str]:
    statement = str(connection.execute(text(f"SHOW CREATE TABLE {table}")).one()[1])
    head, *body, options = statement.splitlines()
    columns = [line.rstrip(",") for line in body if line.lstrip().startswith("`")]
    indexes = sorted(line.rstrip(",") for line in body if not line.lstrip().startswith("`"))
    return [head, *columns, *indexes, re.sub(r" AUTO_INCREMENT=\d+", "", options)]


def _postgresql(connection: Connection, table: str) -> list[str]:
    columns = connection.execute(
        text(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull, attcollation::regcollation::text, "
            "pg_get_expr(adbin, adrelid) FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum "
            "WHERE attrelid = CAST(:t AS regclass) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        ),
        {"t": table},
    )
    indexes = connection.execute(
        text("SELECT indexdef FROM pg_indexes WHERE tablename = :t ORDER BY indexname"), {"t": table}
    )
    constraints = connection.execute(
        text(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = CAST(:t AS regclass) ORDER BY conname"
        ),
        {"t": table},
    )
    return [str(tuple(row)) for row in (*columns, *indexes, *constraints)]
