"""Filling: one filler at a time, late fills dropped, the next promoted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.access import ANONYMOUS, Caller
from app.primitives.cache.model import Found, OnFailure, digest_of
from app.primitives.cache.ops.fill import fill
from app.primitives.cache.ops.remember import remember
from tests.primitives.cache.driving import NS, Cache, reason
from tests.primitives.verbs import misjudge

CLAIM = "claim-of-my-own-1234"


def test_of_all_who_miss_a_key_one_fills_it(cache: Cache) -> None:
    found = cache.remember_all(*(cache.wanted() for _ in range(5)))
    assert [one.found for one in found] == [Found.FILL, *[Found.FILLING] * 4]
    assert {one.expires_at for one in found} == {found[0].expires_at}
    assert cache.remember().found is Found.FILLING
    assert cache.fill(found[0], '"v"').fence == found[0].fence == 1
    remembered = cache.remember()
    assert remembered.found is Found.FRESH
    assert remembered.value is not None
    assert remembered.value.value == b'"v"'
    assert cache.counted() == (1, 3)


def test_who_asks_while_a_stale_value_is_filled_gets_it_at_once(cache: Cache) -> None:
    cache.put('"old"', ttl=10, stale=100)
    cache.move(10)
    first, second = cache.remember_all(cache.wanted(), cache.wanted())
    assert first.found is Found.FILL
    assert first.value is not None
    assert first.value.value == b'"old"', "the filler may use it as well"
    assert second.found is Found.STALE
    assert second.value is not None
    assert second.value.value == b'"old"'
    third = cache.remember()
    assert third.found is Found.STALE
    read = cache.read()
    assert read is not None
    assert read.filling
    cache.fill(first, '"new"')
    assert cache.text() == '"new"'
    assert cache.counted() == (1, 5)


def test_a_filler_that_fails_makes_way_for_the_next(cache: Cache) -> None:
    first = cache.take()
    assert cache.peek("k", "other") == ["other"]
    failed = cache.fail(first)
    assert (failed.fence, failed.replayed) == (1, False)
    assert cache.host.woken[-1] == {digest_of(NS, "k"): 1}
    assert cache.peek("k") == ["k"]
    second = cache.take()
    assert second.fence == 2
    assert reason(cache.try_fill(first, "1")) == "settlement_conflict", "it has said that it failed"
    assert cache.fail(first).replayed
    cache.fill(second, "2")
    assert cache.text() == "2"


def test_a_filler_that_is_lost_makes_way_for_the_next_and_comes_too_late(cache: Cache) -> None:
    first = cache.take(lease=5)
    cache.move(5)
    assert cache.peek("k") == ["k"]
    assert reason(cache.try_fill(first)) == "expired"
    second = cache.take()
    assert second.fence == 2
    assert reason(cache.try_fill(first)) == "superseded"
    assert cache.read() is None
    cache.fill(second, "2")
    assert reason(cache.try_fill(first)) == "superseded"
    assert cache.text() == "2"


@pytest.mark.parametrize("event", ["put", "delete", "clear", "version"])
def test_whoever_fills_what_changed_meanwhile_comes_too_late(cache: Cache, event: str) -> None:
    taken = cache.take()
    if event == "put":
        cache.put("7")
    elif event == "delete":
        cache.delete("k")
    elif event == "clear":
        cache.clear()
    else:
        cache.policy(version="v2")
    assert reason(cache.try_fill(taken)) == "cancelled"
    assert cache.text() == ("7" if event == "put" else None)
    if event != "put":
        again = cache.take()
        assert again.fence > taken.fence
        assert reason(cache.try_fill(taken)) == "superseded"
        cache.fill(again, "8")
        assert cache.text() == "8"


def test_a_fence_never_goes_back_whatever_happens_to_the_entry(cache: Cache) -> None:
    fences = [cache.take(lease=1).fence]
    cache.move(1000)
    assert cache.purge() == 1
    fences.append(cache.take().fence)
    cache.clear()
    assert cache.sweep_cleared() == 1
    fences.append(cache.take().fence)
    cache.delete("k")
    fences.append(cache.take().fence)
    assert fences == sorted(set(fences))


def test_a_repeated_fill_is_answered_as_before(cache: Cache) -> None:
    taken = cache.take()
    assert not cache.fill(taken, "1").replayed
    assert cache.fill(taken, "1").replayed
    assert reason(cache.try_fill(taken, "2")) == "settlement_conflict"
    assert reason(cache.try_fill(taken, "1", ttl=61)) == "settlement_conflict"
    cache.delete("k")
    other = cache.take()
    assert cache.fill(taken, "1").replayed, "also while another fills it"
    cache.fill(other, "3")
    assert cache.fill(taken, "1").replayed
    assert cache.text() == "3"


def test_two_fills_by_one_token_in_one_transaction(cache: Cache) -> None:
    taken = cache.take()
    first, same, other = cache.fill_all(cache.filling(taken), cache.filling(taken), cache.filling(taken, "2"))
    assert (first.replayed, same.replayed) == (False, True)
    assert reason(other) == "settlement_conflict"
    assert cache.text() == "1"


def test_a_fill_with_a_foreign_token_is_dropped(cache: Cache) -> None:
    taken, other = cache.take(), cache.take("other")
    foreign = cache.filling(taken)
    stolen = type(foreign)(other.place, foreign.token, b"9")  # type: ignore[arg-type]
    assert reason(cache.fill_all(stolen)[0]) == "unknown_token"
    assert reason(cache.fill_all(type(foreign)(other.place, "nonsense", b"9"))[0]) == "unknown_token"  # type: ignore[arg-type]
    cache.fill(taken)
    cache.fill(other)
    unknown = cache.wanted("unknown").place
    assert reason(cache.fill_all(type(foreign)(unknown, foreign.token, b"9"))[0]) == "not_found"


def test_a_repeated_claim_gets_its_filling_again_while_it_holds(cache: Cache) -> None:
    first = cache.take(claim_id=CLAIM)
    again = cache.remember(claim_id=CLAIM)
    assert (again.token, again.fence, again.replayed) == (first.token, first.fence, True)
    another = Caller(type(ANONYMOUS)("another", "another", ANONYMOUS.roles), "r")
    assert cache.remember(claim_id=CLAIM, caller=another).found is Found.FILLING
    twins = cache.remember_all(cache.wanted("t", claim_id=CLAIM), cache.wanted("t", claim_id=CLAIM))
    assert [one.replayed for one in twins] == [False, True]
    assert twins[0].token == twins[1].token
    cache.move(30)
    later = cache.remember(claim_id=CLAIM)
    assert (later.fence, later.replayed) == (first.fence + 2, False)


@pytest.mark.parametrize("on_failure", list(OnFailure))
def test_what_becomes_of_a_stale_value_when_its_fill_fails(cache: Cache, on_failure: OnFailure) -> None:
    cache.policy(on_failure=on_failure)
    cache.put("1", ttl=10, stale=1000)
    cache.move(10)
    taken = cache.take()
    assert cache.text() == "1"
    cache.fail(taken)
    assert cache.text() == ("1" if on_failure is OnFailure.SERVE_STALE else None)
    cache.counted()
    assert cache.take().fence == 2


def test_a_fill_follows_the_policy(cache: Cache) -> None:
    taken = cache.take()
    assert reason(cache.try_fill(taken, ttl=None)) == "validation_failed"
    cache.policy(ttl=10, stale=3, max_bytes=5)
    assert reason(cache.try_fill(taken, "123456")) == "payload_too_large"
    cache.fill(taken, "12345", ttl=None)
    value = cache.read()
    assert value is not None
    assert (value.stale_until - value.fresh_until, value.fresh_until - value.stored_at) == (3_000_000, 10_000_000)


def test_what_was_given_to_nobody_goes_to_the_next(cache: Cache) -> None:
    taken = cache.take()
    cache.give_back(taken)
    assert cache.host.woken[-1] == {digest_of(NS, "k"): 1}
    second = cache.take()
    cache.give_back(taken)
    assert cache.remember().found is Found.FILLING, "the second one's is not given back"
    cache.fill(second)


def test_an_evicted_value_that_is_filled_anew_keeps_its_filler(cache: Cache) -> None:
    cache.put("1", ttl=10, stale=1000)
    cache.move(10)
    taken = cache.take(lease=500)
    cache.policy(max_entries=1)
    cache.put("2", "other", ttl=1000)
    assert cache.read() is None
    assert cache.counted() == (1, 1)
    cache.move(120)
    assert cache.purge() == 0, "its filler is at work"
    cache.fill(taken, "3")
    assert cache.text() == "3"


def test_a_unit_that_runs_again_gives_the_same_filling(cache: Cache) -> None:
    """The COMMIT was done, and its answer was lost."""
    first, second = cache.repeat(remember, cache.wanted(), cache.wanted(), cache.wanted("other"))
    assert [one.token for one in first] == [one.token for one in second]
    assert [one.found for one in second] == [Found.FILL, Found.FILLING, Found.FILL]
    done, again = cache.repeat(fill, cache.filling(second[0]), cache.filling(second[2], None, ttl=None))
    assert [one.fence for one in done] == [one.fence for one in again] == [1, 2]
    assert cache.counted() == (1, 1)
    assert cache.take("other").fence == 3


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_what_a_process_with_a_wrong_clock_thinks_does_not_count(cache: Cache, replica: Callable[[], Cache]) -> None:
    """Only the database's own clock says whether the lease of a filler has ended."""
    ahead, behind = replica(), replica()
    misjudge(ahead, 180)
    misjudge(behind, -180)
    taken = cache.take(lease=60)
    assert ahead.remember(lease=60).found is Found.FILLING
    assert cache.fill(taken).fence == 1
    over = behind.take("other", lease=60)
    assert reason(behind.try_fill(over)) == "expired", "it ended before it began"
    assert cache.take("other").fence == 3
