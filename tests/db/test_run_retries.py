"""The retry boundary against real servers that really fail: `Database.run` either did the work once, or says that it may not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import structlog
from sqlalchemy import Connection, make_url, select, text, update

from app.db import engines
from app.db.database import TRIES, Database
from app.db.dialects.base import Fault
from app.db.faults import DatabaseBug
from app.db.tx import Tx
from app.db.watchdog import Watchdog
from app.errors import Refusal
from tests.db.conftest import ROWS, insert_rows, kill_session, select_all, session_id
from tests.servers import Server
from tests.servers.proxy import Proxy

SERVERS = ("mariadb", "mysql", "postgresql")

Open = Callable[[str], Database]


def add_once(tx: Tx, commands: Sequence[bytes]) -> Sequence[str]:
    """An op as the service writes them: it looks its identity up, so it may run again after an unknown COMMIT."""
    outcomes = []
    for key in commands:
        if tx.conn.execute(select(ROWS.c.key).where(ROWS.c.key == key)).first() is None:
            tx.conn.execute(ROWS.insert().values(key=key, amount=1))
            outcomes.append("new")
        else:
            outcomes.append("there")
    return outcomes


class Tries:
    """Wraps an op: calls `before[n]` at the start of the n-th try, and counts tries."""

    def __init__(self, op: Any, *before: Callable[[Tx], object]) -> None:
        self.op, self.before, self.seen = op, before, list[Tx]()

    def __call__(self, tx: Tx, commands: Sequence[Any]) -> Sequence[Any]:
        self.seen.append(tx)
        if len(self.seen) <= len(self.before):
            self.before[len(self.seen) - 1](tx)
        outcomes: Sequence[Any] = self.op(tx, commands)
        return outcomes


@pytest.fixture
def side(rows_url: str) -> Iterator[Connection]:
    """A connection past the service, in autocommit."""
    url = make_url(rows_url)
    with engines.make(engines.recognise(url), url, "read").connect() as connection:
        yield connection


@pytest.fixture
def proxied(rows_url: str, proxy: Proxy, open_database: Open) -> Database:
    """A database behind the proxy, its writing connection open."""
    database = open_database(proxy.url(rows_url))
    database.run(add_once, [b"warm"])
    return database


# -- the connection ----------------------------------------------------------------------------------------------------


@pytest.mark.engines(*SERVERS)
def test_a_connection_that_is_killed_within_a_unit_is_replaced(database: Database, side: Connection) -> None:
    op = Tries(add_once, lambda tx: kill_session(side, session_id(tx.conn)))
    assert database.run(op, [b"k"]) == ["new"]
    assert len(op.seen) == 2
    assert not op.seen[1].repeated
    assert database.faults == {Fault.GONE.value: 1}


@pytest.mark.engines(*SERVERS)
def test_a_connection_that_died_while_idle_is_replaced(database: Database, side: Connection) -> None:
    database.run(add_once, [b"k"])
    numbers: list[int] = []

    def number(tx: Tx, commands: Sequence[Any]) -> Sequence[Any]:
        numbers.append(session_id(tx.conn))
        return commands

    database.run(number, [None])
    kill_session(side, numbers[0])
    database.run(number, [None])
    assert numbers[1] != numbers[0]


@pytest.mark.engines(*SERVERS)
def test_a_server_killed_and_started_again_between_tries(database: Database, faulty_server: Server) -> None:
    database.run(add_once, [b"before"])

    def crash(_: Tx) -> None:
        faulty_server.kill()
        faulty_server.start()

    op = Tries(add_once, crash)
    assert database.run(op, [b"k"]) == ["new"]
    assert database.read(select_all, None) == {b"before": 1, b"k": 1}


@pytest.mark.engines(*SERVERS)
def test_a_server_that_stays_away_is_503_and_its_return_needs_nothing(database: Database, faulty_server: Server) -> None:
    faulty_server.kill()
    for call in (lambda: database.run(add_once, [b"k"]), lambda: database.read(select_all, None), database.measure_clock):
        with pytest.raises(Refusal) as raised:
            call()
        assert raised.value.code.name == "database_unavailable"
    faulty_server.start()
    database.measure_clock()
    assert database.run(add_once, [b"k"]) == ["new"]


@pytest.mark.engines(*SERVERS)
def test_one_fault_makes_every_thread_replace_its_connection_once(database: Database, side: Connection) -> None:
    asked, answered = threading.Semaphore(0), threading.Semaphore(0)
    numbers: list[int] = []

    def number(tx: Tx, commands: Sequence[Any]) -> Sequence[Any]:
        numbers.append(session_id(tx.conn))
        return commands

    def other_thread() -> None:
        for _ in range(3):
            asked.acquire()
            database.run(number, [None])
            answered.release()
        database.close()

    def ask() -> None:
        asked.release()
        answered.acquire()

    thread = threading.Thread(target=other_thread)
    thread.start()
    ask()
    database.run(Tries(add_once, lambda tx: kill_session(side, session_id(tx.conn))), [b"k"])
    ask()
    ask()
    thread.join()
    assert numbers[0] != numbers[1] == numbers[2]


@pytest.mark.engines(*SERVERS)
def test_the_clock_is_measured_again_after_a_reconnect(database: Database, side: Connection) -> None:
    """A failover may lead to a server whose clock differs."""
    right = database.clock.now()
    database.clock.adopt(0, 0)
    op = Tries(add_once, lambda tx: kill_session(side, session_id(tx.conn)))
    database.run(op, [b"k"])
    assert right < op.seen[1].now < right + 60_000_000


@pytest.mark.engines("postgresql")
def test_a_frozen_server_does_not_hold_a_thread_for_ever(database: Database, faulty_server: Server) -> None:
    """libpq has no read timeout; river#1251: a stalled BEGIN hung the scheduler for good."""
    watchdog = Watchdog(database._connections, database.dialect, silent_seconds=0.2)
    watchdog.start()
    try:
        op = Tries(add_once, lambda _: faulty_server.pause())
        with pytest.raises(Refusal):
            database.run(op, [b"k"], within_seconds=0)
    finally:
        watchdog.stop()
    faulty_server.resume()
    assert database.run(add_once, [b"k"]) == ["new"]


# -- the answer to COMMIT ----------------------------------------------------------------------------------------------


@pytest.mark.engines(*SERVERS)
def test_a_lost_answer_to_commit_leaves_the_work_done_once(proxied: Database, proxy: Proxy) -> None:
    proxy.lose_reply_to(b"COMMIT")
    op = Tries(add_once)
    assert proxied.run(op, [b"k"]) == ["there"]
    assert proxy.struck.is_set()
    assert [tx.repeated for tx in op.seen] == [False, True]
    assert op.seen[0].memo is op.seen[1].memo
    assert proxied.read(select_all, None) == {b"warm": 1, b"k": 1}


@pytest.mark.engines(*SERVERS)
def test_a_commit_that_never_arrived_is_run_again(proxied: Database, proxy: Proxy) -> None:
    proxy.cut_before(b"COMMIT")
    op = Tries(add_once)
    assert proxied.run(op, [b"k"]) == ["new"]
    assert [tx.repeated for tx in op.seen] == [False, True]
    assert proxied.read(select_all, None) == {b"warm": 1, b"k": 1}


@pytest.mark.engines(*SERVERS)
def test_callbacks_run_once_and_only_after_the_answered_commit(proxied: Database, proxy: Proxy) -> None:
    proxy.lose_reply_to(b"COMMIT")
    called: list[int] = []

    def op(tx: Tx, commands: Sequence[bytes]) -> Sequence[str]:
        tx.on_commit(lambda: called.append(1))
        return add_once(tx, commands)

    proxied.run(op, [b"k"])
    assert called == [1]


@pytest.mark.engines(*SERVERS)
@pytest.mark.parametrize("direction", ["requests", "replies"])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_connection_cut_at_any_byte(proxied: Database, proxy: Proxy, direction: Any, reset: bool) -> None:
    """Each byte of a unit's conversation in turn: one answer or one 503, and the work is there once."""
    cut, whole = 0, 0
    for number in range(1, 400):
        key = str(number).encode()
        proxy.cut_after(number, direction, reset=reset)
        try:
            proxied.run(add_once, [key], within_seconds=0)
            whole += 1
        except Refusal as refusal:
            assert refusal.code.name == "database_unavailable"
            cut += 1
        proxy.heal()
        assert proxied.run(add_once, [key])[0] in ("new", "there")
        if whole == 3:
            break
    assert cut > 10
    found = proxied.read(select_all, None)
    assert set(found.values()) == {1}
    assert len(found) == number + 1


@pytest.mark.engines(*SERVERS)
def test_a_connection_cut_while_it_is_made(proxied: Database, proxy: Proxy) -> None:
    for number in range(1, 1200, 37):
        proxied.close()
        proxy.cut_after(number)
        key = str(number).encode()
        try:
            proxied.run(add_once, [key], within_seconds=0)
        except Refusal as refusal:
            assert refusal.code.name == "database_unavailable"
        proxy.heal()
        proxied.run(add_once, [key])
    assert set(proxied.read(select_all, None).values()) == {1}


@pytest.mark.engines(*SERVERS)
def test_slow_replies_are_waited_for(proxied: Database, proxy: Proxy) -> None:
    proxy.delay_replies(0.05)
    assert proxied.run(add_once, [b"k"]) == ["new"]
    assert proxied.faults == {}


# -- locks -------------------------------------------------------------------------------------------------------------


@pytest.mark.engines(*SERVERS)
def test_units_that_deadlock_all_succeed(database: Database) -> None:
    database.run(insert_rows, [{"key": key, "amount": 0} for key in (b"a", b"b")])
    meet = threading.Barrier(2)

    def bump(keys: list[bytes]) -> None:
        first = True

        def op(tx: Tx, commands: Sequence[None]) -> Sequence[None]:
            nonlocal first
            for number, key in enumerate(keys):
                tx.conn.execute(update(ROWS).where(ROWS.c.key == key).values(amount=ROWS.c.amount + 1))
                if first and number == 0:
                    first = False
                    meet.wait(10)
            return commands

        database.run(op, [None])
        database.close()

    threads = [threading.Thread(target=bump, args=(keys,)) for keys in ([b"a", b"b"], [b"b", b"a"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.read(select_all, None) == {b"a": 2, b"b": 2}
    assert database.faults[Fault.RETRY.value] >= 1


@pytest.mark.engines(*SERVERS)
def test_a_lock_wait_in_the_middle_of_a_unit_leaves_nothing_behind(
    engine_name: str, database: Database, rows_url: str
) -> None:
    """1205 ends the statement and not the transaction: COMMIT would keep the first half."""
    database.run(insert_rows, [{"key": key, "amount": 0} for key in (b"a", b"b")])
    url = make_url(rows_url)
    setting = "lock_timeout = '100ms'" if engine_name == "postgresql" else "innodb_lock_wait_timeout = 1"

    def both(tx: Tx, commands: Sequence[None]) -> Sequence[None]:
        for key in (b"a", b"b"):
            tx.conn.execute(update(ROWS).where(ROWS.c.key == key).values(amount=ROWS.c.amount + 1))
        return commands

    with engines.make(database.dialect, url, "write").connect() as holder:
        holder.execute(select(ROWS.c.key).where(ROWS.c.key == b"b").with_for_update())
        op = Tries(both, lambda tx: tx.conn.execute(text(f"SET {setting}")), lambda _: holder.rollback())
        database.run(op, [None])
    assert database.read(select_all, None) == {b"a": 1, b"b": 1}
    assert len(op.seen) == 2


def test_a_race_on_a_unique_key_is_run_again_and_sees_the_winner(database: Database, rows_url: str) -> None:
    def wins_between(tx: Tx, commands: Sequence[bytes]) -> Sequence[str]:
        outcomes = []
        for key in commands:
            found = not lost and tx.conn.execute(select(ROWS.c.key).where(ROWS.c.key == key)).first() is None
            lost.append(1)
            if not found and tx.conn.execute(select(ROWS.c.key).where(ROWS.c.key == key)).first() is not None:
                outcomes.append("there")
                continue
            tx.conn.execute(ROWS.insert().values(key=key))
            if len(lost) == 1:
                tx.conn.execute(ROWS.insert().values(key=key))
            outcomes.append("new")
        return outcomes

    lost: list[int] = []
    assert database.run(wins_between, [b"k"]) == ["new"]
    assert database.faults == {Fault.DUPLICATE.value: 1}


# -- what is no fault of the server ------------------------------------------------------------------------------------


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


def test_a_read_cannot_write_where_that_would_disturb_the_writer(engine_name: str, database: Database) -> None:
    if engine_name != "sqlite":
        pytest.skip("a server's reading connections differ only in committing each statement")
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
    with structlog.testing.capture_logs() as logs:
        for row in ({"key": b"top-secret"}, {"key": b"top-secret"}):
            try:
                database.run(insert_rows, [row], within_seconds=0)
            except DatabaseBug as bug:
                told.append(repr(bug))
                assert bug.__suppress_context__
        with pytest.raises(DatabaseBug) as raised:
            database.run(lambda tx, _: [tx.conn.execute(text("SELECT nothing FROM no_such"), {"v": "top-secret"})], [None])
        told.append(str(raised.value))
        if engine_name != "sqlite":
            wrong = make_url(rows_url).set(password="top-secret", username="nobody-at-all")
            with pytest.raises(Exception, match="no connection to") as refused:
                open_database(wrong.render_as_string(hide_password=False))
            told.append(str(refused.value))
    assert "top-secret" not in f"{logs}{told}{caplog.text}"
