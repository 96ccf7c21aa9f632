"""Acquiring, the line of those who wait, and what the fence survives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from app.access import Caller, Principal, Role
from app.clock import to_text
from app.errors import Refusal
from app.primitives.locks.model import Acquired, InLine, State, digest_of
from app.primitives.locks.ops.acquire import acquire, peek
from app.primitives.locks.tables import lock_waiters
from app.primitives.locks.tables import locks as table
from tests.primitives.locks.driving import Locks, good, reason

OTHER = Caller(Principal("other", "other", frozenset({Role.WORKER})), "request-2")
CLAIM = "claim-of-my-own-1234"


def test_a_free_lock_is_given_with_a_fresh_token_and_the_next_fence(locks: Locks) -> None:
    first = locks.take(ttl=30)
    locks.release(first)
    second = locks.take(ttl=30)
    assert (first.fence, second.fence) == (1, 2)
    assert first.token != second.token
    assert second.expires_at > locks.now


def test_a_held_lock_is_refused_with_its_owner_and_its_end(locks: Locks) -> None:
    held = locks.take(owner="host-1", ttl=20)
    refusal = locks.try_()
    assert isinstance(refusal, Refusal)
    assert refusal.http_status == 423
    assert refusal.extra == {"owner": "host-1", "expires_at": to_text(held.expires_at)}
    assert 1 <= (refusal.retry_after_seconds or 0) <= 20


def test_of_several_calls_in_one_transaction_the_first_gets_it(locks: Locks) -> None:
    outcomes = locks.acquire_all(*(locks.wanted(owner=f"o{number}") for number in range(3)))
    assert isinstance(outcomes[0], Acquired)
    assert [reason(one) for one in outcomes[1:]] == ["locked", "locked"]
    assert outcomes[1].extra["owner"] == "o0"


def test_names_are_one_lock_only_if_their_bytes_are(locks: Locks) -> None:
    """Fault 26: keys that look alike are different locks on every database."""
    names = ["a", "A", "a ", "é", "e\u0301", "😀", "🎉", "ß", "ss", "a\x00", "x" * 255]
    outcomes = locks.acquire_all(*(locks.wanted(name) for name in names))
    assert all(isinstance(one, Acquired) for one in outcomes)
    assert [good(one).name for one in outcomes] == names


def test_a_lock_whose_lease_has_ended_goes_to_another_with_a_higher_fence(locks: Locks) -> None:
    old = locks.take(ttl=5)
    locks.move(6)
    new = locks.take()
    assert new.fence == old.fence + 1
    assert reason(locks.release_all(old)[0]) == "superseded"
    assert reason(locks.renew_all(locks.hold(old))[0]) == "superseded"
    assert locks.verify("l", new.fence).current


def test_a_fence_survives_release_expiry_and_purge(locks: Locks) -> None:
    locks.release(locks.take())
    locks.take(ttl=5)
    locks.move(6)
    assert locks.expire() == 1
    locks.move(locks.host.settings.locks_retention_seconds + 120)
    assert locks.purge() == 1
    assert not locks.rows(table)
    assert locks.verify("l", 2).fence >= 2
    assert locks.take().fence == 3


def test_a_purge_keeps_what_ended_a_moment_ago(locks: Locks) -> None:
    locks.host.set(locks_retention_seconds=0.0)
    locks.release(locks.take())
    locks.move(30)
    assert locks.purge() == 0
    locks.move(60)
    assert locks.purge() == 1


def test_a_purge_leaves_what_is_held(locks: Locks) -> None:
    locks.take(ttl=86_400)
    locks.move(3600)
    assert locks.purge() == 0


# -- repeats -------------------------------------------------------------------------------------------------------------


def test_a_repeated_claim_gives_the_same_reservation_while_it_holds(locks: Locks) -> None:
    """Scenario 4: the answer of a claim was lost."""
    first = locks.take(claim_id=CLAIM)
    again = locks.take(claim_id=CLAIM)
    assert (again.token, again.fence, again.expires_at) == (first.token, first.fence, first.expires_at)
    assert again.replayed
    assert not first.replayed


def test_a_claim_id_is_bound_to_its_key_and_its_lock(locks: Locks) -> None:
    first = locks.take(claim_id=CLAIM)
    assert reason(locks.try_(claim_id=CLAIM, caller=OTHER)) == "locked"
    assert locks.take("another", claim_id=CLAIM).token != first.token


def test_a_claim_of_before_does_not_give_a_lock_back_that_was_released(locks: Locks) -> None:
    first = locks.take(claim_id=CLAIM)
    locks.release(first)
    second = locks.take(claim_id=CLAIM)
    assert second.fence == first.fence + 1
    assert not second.replayed


def test_a_commit_without_an_answer_gives_the_same_reservations(locks: Locks) -> None:
    held = locks.wanted("held")
    locks.take("held")
    commands = [locks.wanted("a"), held, locks.wanted("a"), locks.wanted("b", wait=5), locks.wanted("held", wait=5)]
    first, second = locks.repeat(acquire, *commands)
    assert [type(one) for one in first] == [Acquired, Refusal, Refusal, Acquired, InLine]
    assert [type(one) for one in second] == [type(one) for one in first]
    assert (second[0].token, second[3].token) == (first[0].token, first[3].token)
    assert len(locks.rows(lock_waiters)) == 1
    assert locks.release(first[0]).fence == 1


# -- the line --------------------------------------------------------------------------------------------------------------


def test_waiters_are_served_in_the_order_of_their_arrival_across_replicas(
    locks: Locks, replica: Callable[[], Locks], engine_name: str
) -> None:
    other = locks if engine_name == "sqlite" else replica()
    held = locks.take()
    first, second, third = other.stand(), locks.stand(), other.stand()
    locks.release(held)
    assert reason(locks.try_()) == "locked", "a newcomer does not pass those who wait"
    assert isinstance(locks.again(second), InLine)
    assert isinstance(other.again(third), InLine)
    got = other.again(first)
    assert isinstance(got, Acquired)
    other.release(got)
    assert isinstance(other.again(third), InLine)
    got = locks.again(second)
    assert isinstance(got, Acquired)
    locks.release(got)
    assert isinstance(other.again(third), Acquired)
    assert not locks.rows(lock_waiters)


def test_those_of_one_transaction_stand_in_the_order_of_their_calls(locks: Locks) -> None:
    held = locks.take()
    calls = [locks.wanted(wait=30) for _ in range(5)]
    locks.acquire_all(*reversed(calls))
    locks.release(held)
    for call in calls:
        outcomes = locks.acquire_all(*reversed(calls))
        winner = [one for one in outcomes if isinstance(one, Acquired)]
        assert [type(one) for one in outcomes].count(Acquired) == 1
        assert outcomes[len(calls) - 1 - calls.index(call)] is winner[0]
        locks.release(winner[0])
        calls = [one for one in calls if one is not call]


def test_one_who_leaves_makes_way(locks: Locks) -> None:
    held = locks.take()
    first, second = locks.stand(), locks.stand()
    locks.release(held)
    assert reason(locks.leave(first)) == "locked"
    assert locks.host.woken[-1] == {second.digest: 1}
    assert isinstance(locks.again(second), Acquired)


def test_a_claim_that_comes_again_keeps_its_place(locks: Locks) -> None:
    held = locks.take()
    first = locks.stand(claim_id=CLAIM, wait=10)
    second = locks.stand()
    locks.move(10)
    locks.attend()
    locks.leave(first)
    locks.release(held)
    assert isinstance(locks.again(second), InLine), "its place is kept for a moment"
    assert isinstance(locks.try_(claim_id=CLAIM, wait=10), Acquired)


def test_a_place_that_is_not_taken_again_is_given_up(locks: Locks) -> None:
    held = locks.take(ttl=3600)
    first = locks.stand(claim_id=CLAIM, wait=10)
    second = locks.stand(wait=30)
    locks.move(10)
    locks.leave(first)
    locks.move(3)
    locks.attend()
    locks.release(held)
    assert isinstance(locks.again(second), Acquired)


def test_a_repeated_claim_has_one_place_that_lasts_as_long_as_its_newest_call(locks: Locks) -> None:
    held = locks.take(ttl=3600)
    old = locks.stand(claim_id=CLAIM, wait=10)
    locks.move(5)
    locks.attend()
    new = locks.stand(claim_id=CLAIM, wait=10)
    locks.leave(old)
    assert locks.host.here.waiting, "the newer call still waits"
    locks.move(8)
    locks.attend()
    assert len(locks.rows(lock_waiters)) == 1
    locks.release(held)
    assert reason(locks.try_()) == "locked"
    assert isinstance(locks.again(new), Acquired)


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_a_process_that_is_not_heard_of_any_more_holds_nobody_up(locks: Locks, replica: Callable[[], Locks]) -> None:
    """Scenario 20, for places in a line: whoever waits in a process that was killed does not count."""
    dead = replica()
    held = locks.take(ttl=3600)
    dead.stand()
    second = locks.stand()
    locks.release(held)
    assert isinstance(locks.again(second), InLine)
    locks.move(4)
    locks.attend()
    assert isinstance(locks.again(second), Acquired)


def test_places_of_the_dead_are_swept(locks: Locks) -> None:
    locks.take(ttl=3600)
    locks.stand(wait=5)
    locks.move(10)
    assert locks.purge() == 1
    assert not locks.rows(lock_waiters)


def test_a_lock_that_nobody_holds_is_seen_by_the_poll(locks: Locks) -> None:
    locks.take("a", ttl=5)
    locks.take("b", ttl=60)
    locks.release(locks.take("c"))
    assert locks.peek("a", "b", "c", "never") == ["c", "never"]
    locks.move(6)
    assert locks.peek("a", "b", "c") == ["a", "c"]


def test_a_release_and_the_end_of_a_lease_wake_those_who_wait(locks: Locks) -> None:
    held = locks.take("a", ttl=5)
    locks.release(held)
    locks.take("b", ttl=5)
    locks.move(6)
    locks.expire()
    assert locks.host.woken == [{digest_of(held.name): 1}, {digest_of("b"): 1}]
    assert [row.state for row in locks.rows(table)] == [State.FREE, State.FREE]


def test_a_grant_that_reached_nobody_is_given_back(locks: Locks) -> None:
    held = locks.take()
    locks.give_back(held)
    assert locks.take().fence == held.fence + 1
    locks.give_back(held)
    assert reason(locks.try_()) == "locked", "what is given back is one's own alone"


def test_a_look_for_thousands_who_wait_is_one_statement(locks: Locks) -> None:
    """Law 6: a tick of a process costs one query, however many of its callers wait for however many locks."""
    held = [locks.take(f"l{number}") for number in range(3)]
    locks.release(held[1])
    digests = [digest_of(f"l{number}") for number in range(3000)]
    seen: list[str] = []

    def look(tx: Any, _: None) -> list[bytes]:
        event.listen(tx.conn, "before_cursor_execute", lambda *given: seen.append(given[2]))
        return peek(tx, digests)

    free = locks.database.read(look, None)
    assert len(seen) == 1
    assert len(free) == 2998
    assert digest_of("l1") in free
