"""One contract for four engines: what business SQL may take for granted of a `Dialect`."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import Connection, make_url, select, update

from app.db import engines
from app.db.database import Database
from app.db.faults import DatabaseBug
from tests.db.conftest import ROWS, SERVERS, Open, insert_rows, select_all

KEYS = [
    b"a",
    b"A",
    b"a ",
    b"a  ",
    b" a",
    "é".encode(),
    "e\u0301".encode(),
    b"e",
    "😀".encode(),
    "🎉".encode(),
    "ß".encode(),
    b"ss",
    b"\0",
    b"a\0",
    b"\0a",
    b"x" * 255,
    b"x" * 254,
    b"\xff\xfe",
    b"",
]


def test_the_url_backend_is_corrected_by_what_the_server_says(engine_name: str, database: Database) -> None:
    """MariaDB is reached by mysql+pymysql://, and must not be taken for MySQL."""
    assert database.dialect.name == engine_name
    assert database.capabilities["engine"] == engine_name
    assert database.capabilities["server_version"]


def test_the_databases_clock_is_utc_whatever_the_servers_zone(database: Database) -> None:
    """shedlock#231, db-scheduler: the server runs in Europe/Berlin, this process in St. John's."""
    assert abs(database.clock.now() - time.time_ns() // 1000) < 5_000_000
    stored = database.run(_store_now, [b"k"])[0]
    assert abs(stored - time.time_ns() // 1000) < 5_000_000


def _store_now(tx: Any, commands: Any) -> list[int]:
    tx.conn.execute(ROWS.insert().values(key=commands[0], at=tx.dialect.now()))
    return [tx.conn.execute(select(ROWS.c.at).where(ROWS.c.key == commands[0])).scalar_one()]


def test_the_clock_moves_within_a_transaction(database: Database) -> None:
    def twice(tx: Any, commands: Any) -> list[tuple[int, int]]:
        first = tx.conn.execute(select(tx.dialect.now())).scalar_one()
        while (second := tx.conn.execute(select(tx.dialect.now())).scalar_one()) == first:
            pass
        return [(first, second)]

    first, second = database.run(twice, [None])[0]
    assert first < second < first + 10_000_000


def test_keys_are_told_apart_by_their_bytes_alone(database: Database) -> None:
    """No folding of case, accents, trailing spaces or emoji; the longest key is not cut."""
    database.run(insert_rows, [{"key": key, "unique_key": key, "amount": number} for number, key in enumerate(KEYS)])
    assert database.read(select_all, None) == {key: number for number, key in enumerate(KEYS)}

    def by_key(tx: Any, key: bytes) -> list[int]:
        return list(tx.conn.execute(select(ROWS.c.amount).where(ROWS.c.unique_key == key)).scalars())

    assert [database.read(by_key, key) for key in KEYS] == [[number] for number in range(len(KEYS))]


def test_names_differ_by_case(database: Database) -> None:
    database.run(insert_rows, [{"key": b"1", "name": "Mail"}, {"key": b"2", "name": "mail"}])

    def named(tx: Any, name: str) -> list[bytes]:
        return [bytes(key) for key in tx.conn.execute(select(ROWS.c.key).where(ROWS.c.name == name)).scalars()]

    assert database.read(named, "mail") == [b"2"]


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"\xff\xc3\x28", b'{"a":1,"a":12345678901234567890123}', bytes(range(256)) * 4096],
    ids=["empty", "nul", "invalid-utf8", "json", "1-mib"],
)
def test_opaque_bytes_come_back_as_they_were(database: Database, body: bytes) -> None:
    database.run(insert_rows, [{"key": b"k", "body": body}])

    def load(tx: Any, _: None) -> bytes:
        return bytes(tx.conn.execute(select(ROWS.c.body)).scalar_one())

    assert database.read(load, None) == body


@pytest.mark.engines(*SERVERS)
def test_a_value_that_is_too_long_is_refused_and_not_cut(database: Database) -> None:
    """Also by insert_missing, where INSERT IGNORE would cut it."""

    def missing(tx: Any, commands: Any) -> list[None]:
        tx.conn.execute(tx.dialect.insert_missing(ROWS, [{"key": b"k", "name": "x" * 65}]))
        return [None]

    for op, commands in ((insert_rows, [{"key": b"k", "name": "x" * 65}]), (missing, [None])):
        with pytest.raises(DatabaseBug):
            database.run(op, commands)
    assert database.read(select_all, None) == {}


def test_insert_missing_leaves_what_is_there(database: Database) -> None:
    database.run(insert_rows, [{"key": b"a", "unique_key": b"u", "amount": 1}])

    def missing(tx: Any, commands: Any) -> list[None]:
        new = [
            {"key": b"a", "unique_key": b"other", "amount": 2},
            {"key": b"b", "unique_key": b"u", "amount": 3},
            {"key": b"c", "unique_key": b"c", "amount": 4},
        ]
        tx.conn.execute(tx.dialect.insert_missing(ROWS, new))
        return [None]

    database.run(missing, [None])
    assert database.read(select_all, None) == {b"a": 1, b"c": 4}


def test_upsert_sets_and_add_up_adds(database: Database) -> None:
    database.run(insert_rows, [{"key": b"a", "amount": 1, "name": "kept"}])

    def both(tx: Any, commands: Any) -> list[None]:
        tx.conn.execute(tx.dialect.upsert(ROWS, [{"key": b"a", "amount": 10}, {"key": b"b", "amount": 20}], ["amount"]))
        tx.conn.execute(tx.dialect.add_up(ROWS, [{"key": b"a", "amount": 5}, {"key": b"c", "amount": 7}], ["amount"]))
        return [None]

    database.run(both, [None])
    assert database.read(select_all, None) == {b"a": 15, b"b": 20, b"c": 7}

    def name(tx: Any, key: bytes) -> Any:
        return tx.conn.execute(select(ROWS.c.name).where(ROWS.c.key == key)).scalar_one()

    assert database.read(name, b"a") == "kept"


def test_an_update_counts_the_rows_that_it_matched(database: Database) -> None:
    """Also those whose values did not change: MySQL's own default counts otherwise."""
    database.run(insert_rows, [{"key": b"a", "amount": 1}])

    def same(tx: Any, commands: Any) -> list[int]:
        return [tx.conn.execute(update(ROWS).where(ROWS.c.key == key).values(amount=1)).rowcount for key in commands]

    assert database.run(same, [b"a", b"b"]) == [1, 0]


@pytest.mark.engines(*SERVERS)
def test_lock_free_skips_what_another_holds(migrated_url: str, open_database: Open) -> None:
    database = open_database(migrated_url)
    assert database.capabilities["skip_locked"] == "yes"
    assert database.dialect.skip_locked


@pytest.mark.engines(*SERVERS)
def test_without_the_probes_table_skipping_stays_unproven(database: Database) -> None:
    assert database.capabilities["skip_locked"] == "unproven"
    assert "SKIP LOCKED" not in str(database.dialect.lock_free(select(ROWS.c.key)))


@pytest.mark.engines("sqlite")
def test_one_writer_needs_no_skipping(database: Database) -> None:
    assert database.capabilities["skip_locked"] == "not needed"


@pytest.mark.engines(*SERVERS)
def test_lock_free_takes_the_other_rows_in_order(rows_url: str, two: tuple[Connection, Connection]) -> None:
    one, other = two
    dialect = engines.recognise(make_url(rows_url))
    dialect.skip_locked = True
    one.execute(select(ROWS.c.key).where(ROWS.c.key == b"a").with_for_update())
    query = dialect.lock_free(select(ROWS.c.key).order_by(ROWS.c.key))
    assert [bytes(key) for key in other.execute(query).scalars()] == [b"b"]
