"""Who gets a key, and what the others are told."""

from __future__ import annotations

import pytest

from app.access import Caller, Principal, Role
from app.clock import micros
from app.errors import Refusal
from app.primitives.idempotency.model import OnOwnerLost as Lost
from app.primitives.idempotency.model import Outcome, State, Verdict, key_digest
from app.primitives.idempotency.ops.check import check
from app.primitives.idempotency.tables import keys as table
from app.primitives.idempotency.tables import results
from tests.primitives.idempotency.driving import SCOPE, Idempotency, good, reason

OTHER = Caller(Principal("other", "other", frozenset({Role.WORKER})), "request-2")
CLAIM = "claim-of-my-own-1234"


def test_the_first_who_checks_owns_the_key_and_the_others_are_told_so(keys: Idempotency) -> None:
    mine = keys.take(lease=30)
    assert (mine.fence, mine.attempt, mine.replayed) == (1, 1, False)
    theirs = keys.check()
    assert (theirs.outcome, theirs.token, theirs.expires_at) == (Outcome.IN_PROGRESS, None, mine.expires_at)


def test_a_completed_key_gives_its_result_byte_for_byte(keys: Idempotency) -> None:
    result = b'{"b": 1.10, "a":12345678901234567890, "a": "\\u00e9\xc3\xa9"}'
    keys.settle(keys.take(), result=result)
    for _ in range(2):
        again = keys.check()
        assert (again.outcome, again.result) == (Outcome.REPLAY, result)


def test_another_request_under_the_same_key_is_refused_in_every_state(keys: Idempotency) -> None:
    def refused() -> bool:
        return reason(keys.check_all(keys.wanted(request="another"))[0]) == "idempotency_conflict"

    owned = keys.take()
    assert refused()
    keys.settle(owned, State.OPEN)
    assert refused()
    owned = keys.take()
    keys.settle(owned, State.UNKNOWN)
    assert refused()
    keys.verdict(Verdict.FAILED)
    assert refused()


def test_of_several_in_one_transaction_the_first_owns_it(keys: Idempotency) -> None:
    outcomes = keys.check_all(
        keys.wanted(claim_id=CLAIM), keys.wanted(), keys.wanted(request="x"), keys.wanted(claim_id=CLAIM)
    )
    assert outcomes[0].outcome is Outcome.ACQUIRED
    assert outcomes[1].outcome is Outcome.IN_PROGRESS
    assert reason(outcomes[2]) == "idempotency_conflict"
    assert (outcomes[3].token, outcomes[3].replayed) == (outcomes[0].token, True)


def test_keys_are_the_same_only_if_their_bytes_are(keys: Idempotency) -> None:
    """Fault 26."""
    names = ["a", "A", "a ", "é", "e\u0301", "😀", "🎉", "ß", "ss", "a\x00", "x" * 255]
    assert all(one.outcome is Outcome.ACQUIRED for one in keys.check_all(*(keys.wanted(name) for name in names)))


def test_neither_keys_nor_requests_are_stored(keys: Idempotency) -> None:
    keys.take("secret-key", "secret-request")
    (row,) = keys.rows(table)
    everything = b"".join(bytes(value) for value in row if isinstance(value, bytes)) + repr(row).encode()
    assert b"secret-key" not in everything
    assert b"secret-request" not in everything


def test_a_failed_key_tells_its_failure(keys: Idempotency) -> None:
    keys.settle(keys.take(), State.FAILED, category="card_declined", message="no money")
    told = keys.check()
    assert told.outcome is Outcome.FAILED
    assert told.failure is not None
    assert (told.failure.category, told.failure.message) == ("card_declined", "no money")


def test_a_failure_that_allows_a_retry_opens_the_key_for_the_next(keys: Idempotency) -> None:
    first = keys.take()
    assert keys.settle(first, State.OPEN).state is State.OPEN
    second = keys.take()
    assert (second.attempt, second.fence) == (2, first.fence + 1)
    assert keys.settle(first, State.OPEN).replayed, "a repeat of the first is known though another owns the key"
    assert keys.settle(second).state is State.COMPLETED
    assert keys.check().outcome is Outcome.REPLAY


# -- lost owners -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swept", [True, False])
@pytest.mark.parametrize(
    ("lost", "outcome"),
    [(Lost.RECONCILE, Outcome.RECONCILE), (Lost.REOPEN, Outcome.ACQUIRED), (Lost.FAIL, Outcome.FAILED)],
)
def test_a_lost_owner_leaves_what_it_chose(keys: Idempotency, lost: Lost, outcome: Outcome, swept: bool) -> None:
    """The choice of who comes later does not count: the first one knew whether its work bears to be done again."""
    first = keys.take(lease=5, lost=lost)
    keys.move(6)
    if swept:
        assert keys.abandon() == 1
    told = keys.check(lost=Lost.REOPEN)
    assert told.outcome is outcome
    if outcome is Outcome.ACQUIRED:
        assert (told.attempt, told.fence) == (2, first.fence + 1)
    if outcome is Outcome.RECONCILE:
        assert told.reason == "owner_lost"
    if outcome is Outcome.FAILED:
        assert told.failure is not None
        assert told.failure.category == "owner_lost"
    assert reason(keys.settle_all(keys.settlement(first))[0]) in ("expired", "superseded")
    assert keys.check().outcome is not Outcome.REPLAY


def test_an_unknown_key_stays_so_until_there_is_a_verdict(keys: Idempotency) -> None:
    """Law 2: neither time nor sweeps nor checks take it out of there."""
    keys.settle(keys.take(retention=1), State.UNKNOWN, category="answer_lost")
    keys.move(100 * 86_400)
    keys.abandon()
    keys.purge()
    told = keys.check()
    assert (told.outcome, told.reason) == (Outcome.RECONCILE, "answer_lost")


# -- retention -------------------------------------------------------------------------------------------------------------


def test_after_its_retention_a_key_begins_anew_with_a_higher_fence(keys: Idempotency) -> None:
    first = keys.take(retention=10)
    keys.settle(first)
    keys.move(11)
    again = keys.take(request="another")
    assert (again.attempt, again.fence) == (1, first.fence + 1)
    assert not keys.rows(results)
    assert reason(keys.check_all(keys.wanted())[0]) == "idempotency_conflict"


def test_a_fence_survives_the_purge(keys: Idempotency) -> None:
    first = keys.take(retention=10)
    keys.settle(first)
    keys.move(11)
    assert keys.purge() == 0, "not before no transaction can have read the old floor"
    keys.move(61)
    assert keys.purge() == 1
    assert not keys.rows(table)
    assert not keys.rows(results)
    assert keys.take().fence > first.fence
    assert keys.take("another").fence > first.fence


@pytest.mark.parametrize("state", [State.FAILED, State.OPEN, State.COMPLETED])
def test_every_end_but_unknown_is_purged(keys: Idempotency, state: State) -> None:
    keys.settle(keys.take(retention=10), state)
    keys.move(80)
    assert keys.purge() == 1


# -- repeats and waiting ---------------------------------------------------------------------------------------------------


def test_a_repeated_claim_gives_the_same_reservation(keys: Idempotency) -> None:
    """Scenario 4."""
    first = keys.take(claim_id=CLAIM)
    again = keys.take(claim_id=CLAIM)
    assert (again.token, again.fence, again.expires_at, again.replayed) == (
        first.token, first.fence, first.expires_at, True,
    )  # fmt: skip
    assert keys.check(claim_id=CLAIM, caller=OTHER).outcome is Outcome.IN_PROGRESS
    keys.settle(again)
    assert keys.check(claim_id=CLAIM).outcome is Outcome.REPLAY


def test_a_commit_without_an_answer_gives_the_same_reservations(keys: Idempotency) -> None:
    keys.settle(keys.take("opened"), State.OPEN, key="opened")
    commands = [keys.wanted("new"), keys.wanted("new"), keys.wanted("opened", claim_id=CLAIM), keys.wanted("x")]
    first, second = keys.repeat(check, *commands)
    told = [(one.outcome, one.token, one.fence, one.attempt, one.replayed) for one in first]
    assert [(one.outcome, one.token, one.fence, one.attempt, one.replayed) for one in second] == told
    assert [one.outcome for one in first].count(Outcome.ACQUIRED) == 3
    assert keys.settle(second[0], key="new").state is State.COMPLETED


def test_who_waits_sees_that_nobody_is_at_work(keys: Idempotency) -> None:
    owned = keys.take("a", lease=5)
    keys.take("b", lease=60)
    assert keys.peek("a", "b", "never") == ["never"]
    keys.settle(owned, key="a")
    assert keys.peek("a", "b") == ["a"]
    assert list(keys.host.woken[-1]) == [key_digest(SCOPE, "a")]
    keys.move(61)
    assert keys.peek("b") == ["b"]


def test_a_grant_that_reached_nobody_is_no_attempt(keys: Idempotency) -> None:
    owned = keys.take()
    keys.give_back(owned)
    again = keys.take()
    assert (again.attempt, again.fence) == (1, owned.fence + 1)
    keys.give_back(owned)
    assert keys.check().outcome is Outcome.IN_PROGRESS
    assert reason(keys.settle_all(keys.settlement(owned))[0]) == "superseded"


def test_one_who_asks_for_something_else_does_not_get_an_open_key(keys: Idempotency) -> None:
    keys.settle(keys.take(), State.OPEN)
    conflict, mine = keys.check_all(keys.wanted(request="x"), keys.wanted())
    assert isinstance(conflict, Refusal)
    assert good(mine).outcome is Outcome.ACQUIRED
    assert good(mine).expires_at > keys.now + micros(50)
