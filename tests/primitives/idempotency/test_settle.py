"""Settlements, heartbeats and verdicts."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from app.clock import micros
from app.primitives.audit.tables import audit
from app.primitives.idempotency.model import Beat, Outcome, State, Verdict, key_digest
from app.primitives.idempotency.model import OnOwnerLost as Lost
from app.primitives.idempotency.ops.reconcile import reconcile
from app.primitives.idempotency.ops.settle import settle
from tests.primitives.idempotency.driving import SCOPE, Idempotency, good, reason
from tests.primitives.verbs import misjudge

STATES = [State.COMPLETED, State.FAILED, State.UNKNOWN, State.OPEN]


@pytest.mark.parametrize("state", STATES)
def test_a_settlement_counts_once_and_its_repeat_is_answered_as_before(keys: Idempotency, state: State) -> None:
    owned = keys.take()
    first = keys.settle(owned, state)
    assert (first.state, first.fence, first.replayed) == (state, owned.fence, False)
    again = keys.settle(owned, state)
    assert (again.state, again.fence, again.replayed) == (state, owned.fence, True)


@pytest.mark.parametrize("state", STATES)
def test_another_settlement_with_the_same_token_is_a_conflict(keys: Idempotency, state: State) -> None:
    owned = keys.take()
    keys.settle(owned, state)
    for other in STATES:
        command = keys.settlement(owned, other, result=b"2", category="another")
        assert reason(keys.settle_all(command)[0]) == "settlement_conflict"


def test_two_settlements_in_one_transaction_are_one(keys: Idempotency) -> None:
    owned = keys.take()
    first, same, other = keys.settle_all(
        keys.settlement(owned), keys.settlement(owned), keys.settlement(owned, State.FAILED)
    )
    assert (first.replayed, same.replayed, reason(other)) == (False, True, "settlement_conflict")


def test_a_token_that_holds_nothing_settles_nothing(keys: Idempotency) -> None:
    owned, theirs = keys.take("a"), keys.take("b")
    assert reason(keys.settle_all(keys.settlement(theirs, key="a"))[0]) == "unknown_token"
    assert reason(keys.settle_all(keys.settlement(owned, key="never"))[0]) == "not_found"
    keys.move(61)
    assert reason(keys.settle_all(keys.settlement(owned, key="a"))[0]) == "expired"
    assert keys.check("a").outcome is Outcome.RECONCILE


def test_a_commit_without_an_answer_is_answered_the_same(keys: Idempotency) -> None:
    owned = keys.take()
    first, second = keys.repeat(settle, keys.settlement(owned))
    assert (good(first[0]).state, good(second[0]).state) == (State.COMPLETED, State.COMPLETED)


def test_a_heartbeat_extends_the_lease_and_never_shortens_it(keys: Idempotency) -> None:
    owned = keys.take(lease=30)
    keys.move(20)
    until = keys.beat(owned, 30).expires_at
    assert until >= keys.now + micros(29)
    assert keys.beat(owned, 1).expires_at == until
    assert keys.beat(owned, None).expires_at >= until
    keys.move(31)
    beat = Beat(key_digest(SCOPE, "k"), owned.token or "", None)
    refused = keys.beat_all(beat)[0]
    assert (reason(refused), refused.extra["current_fence"]) == ("expired", owned.fence)
    assert reason(keys.beat_all(Beat(key_digest(SCOPE, "never"), "x", None))[0]) == "not_found"


# -- verdicts --------------------------------------------------------------------------------------------------------------


def unknown(keys: Idempotency) -> None:
    keys.settle(keys.take(), State.UNKNOWN)


def test_a_verdict_completes_with_what_was_found(keys: Idempotency) -> None:
    unknown(keys)
    assert good(keys.verdict()).state is State.COMPLETED
    told = keys.check()
    assert (told.outcome, told.result) == (Outcome.REPLAY, b'"found"')


def test_a_verdict_fails_or_reopens(keys: Idempotency) -> None:
    unknown(keys)
    assert good(keys.verdict(Verdict.REOPEN)).state is State.OPEN
    owned = keys.take()
    assert owned.attempt == 2
    keys.settle(owned, State.UNKNOWN)
    assert good(keys.verdict(Verdict.FAILED)).state is State.FAILED
    told = keys.check()
    assert told.outcome is Outcome.FAILED
    assert told.failure is not None
    assert told.failure.category == "verdict"


def test_the_first_verdict_stands(keys: Idempotency) -> None:
    unknown(keys)
    assert not good(keys.verdict()).replayed
    assert good(keys.verdict()).replayed
    assert reason(keys.verdict(result=b'"else"')) == "verdict_conflict"
    assert reason(keys.verdict(Verdict.REOPEN)) == "verdict_conflict"
    assert keys.check().result == b'"found"'


def test_only_an_unknown_key_takes_a_verdict(keys: Idempotency) -> None:
    assert reason(keys.verdict()) == "not_found"
    owned = keys.take()
    refused = keys.verdict()
    assert (reason(refused), refused.extra["state"]) == ("state_conflict", "running")
    keys.settle(owned)
    assert reason(keys.verdict()) == "state_conflict"


def test_a_verdict_on_a_key_whose_owner_was_just_lost_counts(keys: Idempotency) -> None:
    keys.take(lease=5)
    keys.move(6)
    assert good(keys.verdict()).state is State.COMPLETED


def test_a_verdict_does_not_touch_a_key_that_was_to_be_reopened(keys: Idempotency) -> None:
    keys.take(lease=5, lost=Lost.REOPEN)
    keys.move(6)
    assert reason(keys.verdict()) == "state_conflict"


def test_a_verdict_is_audited_with_its_evidence(keys: Idempotency) -> None:
    unknown(keys)
    keys.verdict()
    (entry,) = keys.rows(audit)
    assert (entry.action, entry.target) == ("idempotency.reconcile", SCOPE)
    details = msgspec.json.decode(bytes(entry.details))
    assert details["evidence"] == {"seen": 1}
    assert details["key_digest"] == key_digest(SCOPE, "k").hex()


def test_a_verdict_whose_commit_had_no_answer_is_no_replay(keys: Idempotency) -> None:
    from app.ids import new_id
    from app.primitives.idempotency.model import Reconcile
    from tests.primitives.verbs import CALLER

    unknown(keys)
    command = Reconcile(SCOPE, key_digest(SCOPE, "k"), Verdict.COMPLETED, b"1", b"{}", CALLER, new_id())
    first, second = keys.repeat(reconcile, command)
    assert (good(first[0]).replayed, good(second[0]).replayed) == (False, False)
    assert len(keys.rows(audit)) == 1


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_what_a_process_with_a_wrong_clock_thinks_does_not_count(
    keys: Idempotency, replica: Callable[[], Idempotency]
) -> None:
    """Only the database's own clock says whether a lease has ended."""
    ahead, behind = replica(), replica()
    misjudge(ahead, 180)
    misjudge(behind, -180)
    owned = keys.take(lease=60)
    assert ahead.check().outcome is Outcome.IN_PROGRESS
    ahead.abandon()
    assert keys.settle(owned, result=b"1").state is State.COMPLETED
    over = behind.take("other", lease=60)
    assert reason(behind.settle_all(behind.settlement(over, key="other"))[0]) == "expired", "it ended before it began"
    assert keys.check("other").outcome is Outcome.RECONCILE
