"""The one MetaData, the table prefix and the column types that mean the same on every engine.

Tables are declared in each primitive's `tables.py` (and for the service itself in `db/tables.py`).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Dialect,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
)
from sqlalchemy import Text as Unbounded
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from app.holding import PAST_BYTES
from app.settings import table_prefix

PREFIX = table_prefix()
metadata = MetaData()

_MYSQL = ("mysql", "mariadb")


class _AsItIs:
    """Drivers take bytes as they are; to wrap each value, as the types of SQLAlchemy do, is a call for each of them."""

    def bind_processor(self, dialect: Dialect) -> None:
        return None


class _Bytes(_AsItIs, LargeBinary):
    pass


class _Binary(_AsItIs, mysql.BINARY):
    pass


class _VarBinary(_AsItIs, mysql.VARBINARY):
    pass


class _LongBlob(_AsItIs, mysql.LONGBLOB):
    pass


Moment = BigInteger()  # microseconds since the epoch, UTC, of the database's clock
Id = _Bytes(16).with_variant(_Binary(16), *_MYSQL)  # a UUIDv7's bytes
Digest = _Bytes(32).with_variant(_Binary(32), *_MYSQL)  # SHA-256
Opaque = _Bytes().with_variant(_LongBlob(), *_MYSQL)  # bytes that the service never reads
Key = _Bytes(255).with_variant(_VarBinary(255), *_MYSQL)  # a caller's key; identity is its bytes
Past = _Bytes(PAST_BYTES).with_variant(_VarBinary(PAST_BYTES), *_MYSQL)  # `app.holding`
Serial = Integer()
Whole = Unbounded().with_variant(
    mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), *_MYSQL
)  # text of any length
Counter = BigInteger().with_variant(Integer(), "sqlite")  # an id that counts by itself, for very many rows
Small = SmallInteger()
Count = Integer()


def Name(length: int = 128) -> String:  # noqa: N802 - reads as a type in a table definition
    """ASCII text whose case counts, compared byte for byte on every engine."""
    return String(length).with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), *_MYSQL)


def Text(length: int) -> String:  # noqa: N802 - reads as a type in a table definition
    """Text for people; never compared by a query."""
    return String(length).with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), *_MYSQL)


def named(name: str) -> str:
    """The real name of a table or an index."""
    return PREFIX + name


TABLE_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mariadb_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mariadb_charset": "utf8mb4",
}


class Now(ColumnElement[int]):
    """DEFAULT of a column: the database's time in microseconds UTC, whatever the session's zone."""

    inherit_cache = True
    type = BigInteger()


_MYSQL_NOW = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))"


@compiles(Now, "mysql", "mariadb")
def _mysql_now(_element: Now, _compiler: SQLCompiler, **_: object) -> str:
    return _MYSQL_NOW


@compiles(Now, "postgresql")
def _postgresql_now(_element: Now, _compiler: SQLCompiler, **_: object) -> str:
    return "(extract(epoch from clock_timestamp())*1000000)::bigint"


@compiles(Now, "sqlite")
def _sqlite_now(_element: Now, _compiler: SQLCompiler, **_: object) -> str:
    return "(CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))"
