"""Errors that no retry mends: what comes out of `Database.run`, and what is never told."""

from __future__ import annotations

import logging
import secrets
import traceback
from collections.abc import Sequence
from typing import Any

import pytest
import structlog
from sqlalchemy import Connection, make_url, text

from app.db.database import TRIES, Database
from app.db.faults import DatabaseBug
from app.db.tx import Tx
from app.errors import Refusal
from tests.db.conftest import ROWS, SERVERS, Open, Tries, add_once, insert_rows, kill_session, select_all, session_id


def test_a_duplicate_that_never_goes_away_ends_as_a_bug(database: Database) -> None:
    database.run(insert_rows, [{"key": b"k"}])
    op = Tries(insert_rows)
    with pytest.raises(DatabaseBug):
        database.run(op, [{"key": b"k"}])
    assert len(op.seen) == TRIES


def test_a_statement_that_cannot_work_is_not_tried_again(database: Database) -> None:
    def op(tx: Tx, commands: Sequence[Any]) -> Sequence[Any]:
        tx.conn.execute(ROWS.insert().values(key=b"k"))
        tx.conn.execute(text("SELECT * FROM no_such_table"))
        return commands

    counted = Tries(op)
    with pytest.raises(DatabaseBug, match="no_such_table"):
        database.run(counted, [None])
    assert len(counted.seen) == 1
    assert database.read(select_all, None) == {}


def test_an_error_of_the_op_rolls_back_and_comes_out_unchanged(database: Database) -> None:
    def op(tx: Tx, commands: Sequence[Any]) -> Sequence[Any]:
        tx.conn.execute(ROWS.insert().values(key=b"k"))
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        database.run(op, [None])
    assert database.read(select_all, None) == {}


@pytest.mark.engines(*SERVERS)
def test_a_rollback_that_fails_does_not_hide_the_error(database: Database, side: Connection) -> None:
    def op(tx: Tx, commands: Sequence[Any]) -> Sequence[Any]:
        kill_session(side, session_id(tx.conn))
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        database.run(op, [None])
    assert database.run(add_once, [b"k"]) == ["new"]


@pytest.mark.engines("postgresql")
def test_a_swallowed_error_is_not_reported_as_done(database: Database) -> None:
    """PostgreSQL answers COMMIT of a failed transaction with ROLLBACK, and no error."""

    def op(tx: Tx, commands: Sequence[Any]) -> Sequence[Any]:
        tx.conn.execute(ROWS.insert().values(key=b"k"))
        with pytest.raises(Exception, match="no_such_table"):
            tx.conn.execute(text("SELECT * FROM no_such_table"))
        return commands

    with pytest.raises(RuntimeError, match="ended its transaction"):
        database.run(op, [None])
    assert database.read(select_all, None) == {}


@pytest.mark.engines("sqlite")
def test_a_read_cannot_write_where_that_would_disturb_the_writer(database: Database) -> None:
    with pytest.raises(Refusal):
        database.read(lambda tx, _: tx.conn.execute(ROWS.insert().values(key=b"k")), None, within_seconds=0)


def test_no_new_try_begins_after_the_time_is_spent(database: Database) -> None:
    database.run(insert_rows, [{"key": b"k"}])
    op = Tries(insert_rows)
    with pytest.raises(DatabaseBug):
        database.run(op, [{"key": b"k"}], within_seconds=0)
    assert len(op.seen) == 1


def test_neither_values_nor_passwords_are_told(
    engine_name: str, database: Database, rows_url: str, open_database: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    secret = secrets.token_hex(8)
    with structlog.testing.capture_logs() as logs:
        database.run(insert_rows, [{"key": secret.encode()}])
        with pytest.raises(DatabaseBug) as again:
            database.run(insert_rows, [{"key": secret.encode()}], within_seconds=0)
        assert again.value.__suppress_context__
        told.append("".join(traceback.format_exception(again.value)))
        with pytest.raises(DatabaseBug) as raised:
            database.run(lambda tx, _: [tx.conn.execute(text("SELECT nothing FROM no_such"), {"v": secret})], [None])
        told.append(str(raised.value))
        if engine_name != "sqlite":
            wrong = make_url(rows_url).set(password=secret, username="nobody-at-all")
            with pytest.raises(Exception, match="no connection to") as refused:
                open_database(wrong.render_as_string(hide_password=False))
            told.append(str(refused.value))
    assert secret not in f"{logs}{told}{caplog.text}"
