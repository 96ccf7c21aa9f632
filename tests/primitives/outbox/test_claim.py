"""Claims of messages, on every engine: each to one holder, of what it named, and the same again for a lost answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.access import Caller, Principal
from app.clock import micros
from app.errors import STATE_CONFLICT, Refusal
from app.primitives.outbox.model.destinations import Delivery, Mode
from app.primitives.outbox.model.states import State
from app.primitives.outbox.ops.claim import claim
from app.primitives.outbox.tables import outbox_claims, outbox_messages
from tests.primitives.jobs.test_races import together
from tests.primitives.outbox.driving import Outbox, new_message, released, retried, sent

ID = "c" * 32


def ids(grants: Any) -> list[bytes]:
    return [grant.id for grant in grants]


def test_a_claim_is_given_one_message_the_oldest_first(box: Outbox) -> None:
    made = [box.record().id for _ in range(3)]
    assert [ids(box.claim()), ids(box.claim(limit=9))] == [made[:1], made[1:]]


def test_a_grant_has_everything_that_the_sender_needs_and_the_database_holds_no_token(box: Outbox) -> None:
    box.put("d", max_attempts=4)
    caller = Caller(box.caller.principal, "request-9", "00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    (recorded,) = box.record_all(
        new_message(key="k", order="o", correlation_id="c", target_reference="r", occurred_at=micros(1_700_000_000)),
        caller=caller,
    )
    grant = box.take(lease=30)
    assert (grant.message_key, grant.ordering_key, grant.correlation_id, grant.target_reference) == ("k", "o", "c", "r")
    assert (grant.occurred_at, grant.traceparent) == (micros(1_700_000_000), caller.traceparent)
    assert (grant.attempt, grant.max_attempts, grant.fence) == (1, 4, 1)
    assert grant.expires_at - box.message(grant.id).claimed_at == micros(30)  # type: ignore[operator]
    for row in (*box.rows(outbox_messages), *box.rows(outbox_claims)):
        assert grant.token not in repr(row)
    assert not isinstance(recorded, Refusal)


def test_a_claim_takes_the_destinations_and_types_that_it_names_in_its_order_of_preference(box: Outbox) -> None:
    for name in ("e", "f"):
        box.put(name)
    d, e, f = (box.record(name).id for name in "def")
    other = box.record("e", "u").id
    assert ids(box.claim("f", "d", limit=9)) == [f, d]
    assert ids(box.claim("e", "d", limit=9, types=("u", "absent"))) == [other]
    assert ids(box.claim("e")) == [e]
    assert box.claim("d", "e", "f", "nowhere", limit=9) == ()


def test_what_waits_for_its_backoff_hides_nothing(box: Outbox) -> None:
    """yii3-outbox `Processor`, river PR #1318 (scenario 31): a hundred failing messages stand before one that is fresh."""
    for _ in range(100):
        box.record()
    for grant in box.claim(limit=100):
        box.settle(retried(grant, delay=3600))
    fresh = box.record()
    assert ids(box.claim(limit=100)) == [fresh.id]


def test_several_claims_of_one_unit_share_nothing(box: Outbox) -> None:
    made = [box.record().id for _ in range(5)]
    outcomes = box.claim_all(box.wanted(limit=2), box.wanted(limit=2), box.wanted(limit=2))
    given = [ids(one.grants) for one in outcomes if not isinstance(one, Refusal)]
    assert given == [made[:2], made[2:4], made[4:]]


def test_a_claim_id_gives_the_same_grants_again_while_they_are_held(box: Outbox) -> None:
    """camunda/camunda#59354 (scenario 4): the answer of a claim that was committed is lost."""
    for _ in range(4):
        box.record()
    first = box.claim(limit=2, claim_id=ID)
    assert box.claim(limit=2, claim_id=ID) == first
    box.settle(sent(first[0]))
    assert box.claim(limit=2, claim_id=ID) == first[1:]
    other = box.claim(limit=1, claim_id="d" * 32)
    assert not {*ids(other)} & {*ids(first)}
    box.settle(sent(first[1]))
    (last,) = box.claim(limit=2, claim_id=ID)
    assert last.id not in {*ids(first), *ids(other)}


def test_a_claim_id_belongs_to_its_api_key_and_ends_with_its_leases(box: Outbox) -> None:
    box.record()
    first = box.claim(claim_id=ID, lease=60)
    stranger = Caller(Principal("other", "other", box.caller.principal.roles), "r")
    assert box.claim(claim_id=ID, caller=stranger) == ()
    box.move(61)
    assert box.claim(claim_id=ID) == ()
    box.abandon()
    assert box.state(first[0].id) is State.UNKNOWN


def test_a_claim_whose_commit_was_in_doubt_is_answered_from_what_it_took(box: Outbox) -> None:
    made = {box.record().id for _ in range(4)}
    before, after = box.repeat(claim, box.wanted(limit=2), box.wanted(limit=1, claim_id=ID))
    assert [one.grants for one in before] == [one.grants for one in after]
    assert {grant.id for one in after for grant in one.grants} < made
    assert len(box.claim(limit=9)) == 1


def test_a_workers_claim_of_what_the_service_delivers_is_refused(box: Outbox) -> None:
    box.put("h", delivery=Delivery(Mode.HTTP, url="http://127.0.0.1:1/"))
    box.record("h")
    refused, taken = box.claim_all(box.wanted("d", "h"), box.wanted("d"))
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.extra["destinations"]) == (STATE_CONFLICT, ["h"])
    assert not isinstance(taken, Refusal)


def test_what_reached_nobody_is_given_back_at_no_cost(box: Outbox) -> None:
    box.record()
    lost = box.take()
    box.give_back(lost)
    box.give_back(lost)
    grant = box.take()
    assert (grant.attempt, grant.fence) == (1, 2)
    box.give_back(lost)
    assert box.settle(sent(grant)).state is State.SENT


def test_a_release_costs_no_attempt_and_has_a_ceiling(box: Outbox) -> None:
    """laravel/ideas#1381 (scenario 8): releases of a deployment burn attempts."""
    box.host.set(jobs_max_releases=50)
    message = box.record(max_attempts=1)
    for count in range(50):
        grant = box.take()
        assert grant.attempt == 1
        assert box.settle(released(grant)).state is State.PENDING, count
    assert box.settle(released(box.take())).state is State.DEAD
    assert box.message(message.id).category == "released_too_often"


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_replicas_that_claim_at_once_share_nothing(box: Outbox, replica: Callable[[], Outbox]) -> None:
    rows = 150
    made = {box.record(order=f"o{number % 9}" if number % 3 == 0 else None).id for number in range(rows)}
    processes = [box, replica(), replica()]

    def working(process: Outbox) -> Callable[[], list[bytes]]:
        def act() -> list[bytes]:
            got: list[bytes] = []
            idle = 0
            while idle < 5:
                grants = process.claim(limit=4)
                idle = 0 if grants else idle + 1
                got += ids(grants)
                for outcome in process.settle_all(*map(sent, grants)) if grants else ():
                    assert not isinstance(outcome, Refusal)
            if process is not box:
                process.database.close()
            return got

        return act

    given = [one for got in together(*map(working, processes)) for one in got]
    while grants := box.claim(limit=50):  # what became free as the last had gone
        given += ids(grants)
        box.settle_all(*map(sent, grants))
    assert sorted(given) == sorted(made), "each once"
