"""Renewal, release, verification and breaking."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.clock import micros
from app.errors import Refusal
from app.holding import MOST_PAST
from app.primitives.audit.tables import audit
from app.primitives.locks.model import Hold, digest_of
from app.primitives.locks.ops.held import release, renew
from tests.primitives.locks.driving import Locks, good, reason
from tests.primitives.verbs import misjudge


def test_a_renewal_moves_the_end_and_never_back(locks: Locks) -> None:
    held = locks.take(ttl=60)
    locks.move(10)
    longer = locks.renew(held, 60)
    assert longer.expires_at >= held.expires_at + micros(9.9)
    assert locks.renew(held, 1).expires_at == longer.expires_at
    assert locks.renew(held, None).expires_at >= longer.expires_at, "as long as it was acquired for"
    assert longer.fence == held.fence


def test_an_ended_lease_cannot_be_renewed(locks: Locks) -> None:
    held = locks.take(ttl=5)
    locks.move(6)
    refusal = locks.renew_all(locks.hold(held, 60))[0]
    assert reason(refusal) == "expired"
    assert refusal.extra["current_fence"] == held.fence
    locks.expire()
    assert reason(locks.renew_all(locks.hold(held, 60))[0]) == "expired"


def test_a_second_release_is_answered_as_the_first(locks: Locks) -> None:
    held = locks.take()
    assert not locks.release(held).replayed
    again = locks.release(held)
    assert again.replayed
    assert again.fence == held.fence


def test_a_repeated_release_is_known_when_others_have_had_the_lock_since(locks: Locks) -> None:
    """The answer of a release was lost, and the next holder was quick: its lock must not be touched."""
    mine = locks.take()
    locks.release(mine)
    theirs = locks.take()
    again = locks.release(mine)
    assert again.replayed
    assert again.fence == mine.fence
    assert locks.verify("l", theirs.fence).current


def test_only_so_many_holders_are_remembered(locks: Locks) -> None:
    mine = locks.take()
    locks.release(mine)
    for _ in range(MOST_PAST):
        locks.release(locks.take())
    assert locks.release(mine).replayed
    locks.release(locks.take())
    refusal = locks.release_all(mine)[0]
    assert isinstance(refusal, Refusal)
    assert reason(refusal) == "unknown_token"


def test_a_lease_that_ended_unreleased_is_not_called_released(locks: Locks) -> None:
    held = locks.take(ttl=5)
    locks.move(6)
    assert reason(locks.release_all(held)[0]) == "expired"
    locks.release(locks.take())
    assert reason(locks.release_all(held)[0]) == "superseded"


def test_a_token_is_good_for_its_own_lock_alone(locks: Locks) -> None:
    a, b = (good(one) for one in locks.acquire_all(locks.wanted("a"), locks.wanted("b")))
    stolen = Hold("a", digest_of("a"), b.token)
    assert reason(locks.renew_all(stolen)[0]) == "unknown_token"
    assert reason(locks.database.run(release, [stolen])[0]) == "unknown_token"
    assert locks.release(a).fence == 1
    assert reason(locks.renew_all(Hold("nobody", digest_of("nobody"), a.token))[0]) == "unknown_token"
    assert reason(locks.renew_all(Hold("a", digest_of("a"), "x"))[0]) == "unknown_token"


def test_two_releases_in_one_transaction_are_one_and_its_repeat(locks: Locks) -> None:
    held = locks.take()
    first, second = locks.release_all(held, held)
    assert (first.replayed, second.replayed) == (False, True)


@pytest.mark.parametrize("op", [release, renew])
def test_a_commit_without_an_answer_is_answered_the_same(locks: Locks, op: object) -> None:
    held = locks.take()
    first, second = locks.repeat(op, locks.hold(held, 60))  # type: ignore[arg-type]
    assert good(first[0]).fence == good(second[0]).fence == held.fence


# -- verify ----------------------------------------------------------------------------------------------------------------


def test_a_fence_is_current_while_its_holder_holds(locks: Locks) -> None:
    assert locks.verify("l", 0) == locks.verify("l", 1)
    assert (locks.verify("l", 1).current, locks.verify("l", 1).fence, locks.verify("l", 1).held) == (False, 0, False)
    held = locks.take(ttl=30)
    seen = locks.verify("l", held.fence)
    assert (seen.current, seen.fence, seen.held) == (True, 1, True)
    assert not locks.verify("l", held.fence + 1).current
    locks.move(31)
    seen = locks.verify("l", held.fence)
    assert (seen.current, seen.fence, seen.held) == (False, 1, False)
    locks.take()
    seen = locks.verify("l", held.fence)
    assert (seen.current, seen.fence, seen.held) == (False, 2, True)


# -- break -----------------------------------------------------------------------------------------------------------------


def test_a_broken_lock_is_free_and_its_holder_is_told(locks: Locks) -> None:
    held = locks.take(owner="host-1")
    broken = locks.break_()
    assert (broken.broken, broken.fence, broken.owner) == (True, held.fence, "host-1")
    assert reason(locks.renew_all(locks.hold(held))[0]) == "cancelled"
    assert reason(locks.release_all(held)[0]) == "cancelled"
    assert locks.take().fence == held.fence + 1
    assert reason(locks.release_all(held)[0]) == "superseded"
    (entry,) = locks.rows(audit)
    assert (entry.action, entry.target, entry.reason) == ("locks.break", "l", "because")


def test_a_break_with_a_fence_hits_that_holder_alone(locks: Locks) -> None:
    old = locks.take()
    assert locks.break_(fence=old.fence).broken
    new = locks.take()
    again = locks.break_(fence=old.fence)
    assert (again.broken, again.fence) == (False, new.fence)
    assert locks.verify("l", new.fence).current
    assert len(locks.rows(audit)) == 1


def test_what_nobody_holds_cannot_be_broken(locks: Locks) -> None:
    with pytest.raises(Refusal, match="not_found"):
        locks.break_("never")
    locks.release(locks.take())
    assert not locks.break_().broken
    assert not locks.rows(audit)


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_what_a_process_with_a_wrong_clock_thinks_does_not_count(locks: Locks, replica: Callable[[], Locks]) -> None:
    """Only the database's own clock says whether a lease has ended."""
    ahead, behind = replica(), replica()
    misjudge(ahead, 180)
    misjudge(behind, -180)
    held = locks.take(ttl=60)
    assert reason(ahead.try_()) == "locked"
    assert locks.renew(held).fence == 1
    over = behind.take("other", ttl=60)
    assert reason(behind.release_all(over)[0]) == "expired", "it ended before it began"
    assert locks.take("other").fence == 2
