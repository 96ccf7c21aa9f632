"""A COMMIT or any other byte that got lost: the work is done once, or the caller is told that it may not be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from app.db.database import Database
from app.db.tx import Tx
from app.errors import Refusal
from tests.db.conftest import SERVERS, Tries, add_once, select_all
from tests.servers.proxy import Proxy


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
    refusals: list[str] = []
    whole = 0
    for number in range(1, 400):
        key = str(number).encode()
        proxy.cut_after(number, direction, reset=reset)
        try:
            proxied.run(add_once, [key], within_seconds=0)
            whole += 1
        except Refusal as refusal:
            refusals.append(refusal.code.name)
        proxy.heal()
        assert proxied.run(add_once, [key])[0] in ("new", "there")
        if whole == 3:
            break
    assert len(refusals) > 10
    assert set(refusals) == {"database_unavailable"}
    found = proxied.read(select_all, None)
    assert set(found.values()) == {1}
    assert len(found) == number + 1


@pytest.mark.engines(*SERVERS)
def test_a_connection_cut_while_it_is_made(proxied: Database, proxy: Proxy) -> None:
    refusals: list[str] = []
    for number in range(1, 1200, 37):
        proxied.close()
        proxy.cut_after(number)
        key = str(number).encode()
        try:
            proxied.run(add_once, [key], within_seconds=0)
        except Refusal as refusal:
            refusals.append(refusal.code.name)
        proxy.heal()
        proxied.run(add_once, [key])
    assert set(refusals) == {"database_unavailable"}
    assert set(proxied.read(select_all, None).values()) == {1}


@pytest.mark.engines(*SERVERS)
def test_slow_replies_are_waited_for(proxied: Database, proxy: Proxy) -> None:
    proxy.delay_replies(0.05)
    assert proxied.run(add_once, [b"k"]) == ["new"]
    assert proxied.faults == {}
