"""The retry boundary against servers and connections that really fail, and against locks that others hold."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, make_url, select, text, update

from app.db import engines
from app.db.database import Database
from app.db.dialects.base import Fault
from app.db.tx import Tx
from app.db.watchdog import Watchdog
from app.errors import Refusal
from tests.db.conftest import ROWS, SERVERS, Open, Tries, add_once, insert_rows, kill_session, select_all, session_id
from tests.servers import Server


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
def test_a_server_that_stays_away_is_503_and_its_return_needs_nothing(
    database: Database, faulty_server: Server
) -> None:
    faulty_server.kill()
    for call in (
        lambda: database.run(add_once, [b"k"]),
        lambda: database.read(select_all, None),
        database.measure_clock,
    ):
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
    """The driver's libpq has no read timeout; river#1251: a stalled BEGIN hung the scheduler for good."""
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


@pytest.mark.engines("mariadb", "mysql")
def test_a_frozen_mysql_does_not_hold_a_thread_for_ever(
    rows_url: str, faulty_server: Server, open_database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.db.dialects.mysql.SOCKET_SECONDS", 1)
    database = open_database(rows_url)
    with pytest.raises(Refusal):
        database.run(Tries(add_once, lambda _: faulty_server.pause()), [b"k"], within_seconds=0)
    faulty_server.resume()
    assert database.run(add_once, [b"k"]) == ["new"]


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
