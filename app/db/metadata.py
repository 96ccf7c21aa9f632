"""The one MetaData, the table prefix and the column types that mean the same on every engine.

Tables are declared in each primitive's `tables.py` (and for the service itself in `db/tables.py`).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Integer, LargeBinary, MetaData, SmallInteger, String
from sqlalchemy.dialects import mysql

from app.settings import table_prefix

PREFIX = table_prefix()
metadata = MetaData()

_MYSQL = ("mysql", "mariadb")

Moment = BigInteger()  # microseconds since the epoch, UTC, of the database's clock
Id = LargeBinary(16).with_variant(mysql.BINARY(16), *_MYSQL)  # a UUIDv7's bytes
Digest = LargeBinary(32).with_variant(mysql.BINARY(32), *_MYSQL)  # SHA-256
Opaque = LargeBinary().with_variant(mysql.LONGBLOB(), *_MYSQL)  # bytes that the service never reads
Key = LargeBinary(255).with_variant(mysql.VARBINARY(255), *_MYSQL)  # a caller's key; identity is its bytes
Serial = Integer()
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
