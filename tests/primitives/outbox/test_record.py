"""Recording, on every engine: one intent for one message key, however often and however it is recorded."""

from __future__ import annotations

from app.errors import IDEMPOTENCY_CONFLICT, VALIDATION_FAILED, Refusal
from app.primitives.outbox.model.states import State
from tests.primitives.outbox.driving import Outbox, good, new_message, sent


def test_a_recorded_message_is_on_disk_and_can_be_claimed_once(box: Outbox) -> None:
    message = box.record(payload=b'{"n": 1.50}')
    assert box.state(message.id) is State.PENDING
    grant = box.take()
    assert (grant.id, grant.payload, grant.attempt, grant.fence) == (message.id, b'{"n": 1.50}', 1, 1)
    assert box.claim() == ()
    assert box.settle(sent(grant)).state is State.SENT


def test_the_same_key_gives_the_same_message_also_after_it_was_sent(box: Outbox) -> None:
    first = box.record(key="k")
    for _ in range(2):
        (again,) = box.record_all(new_message(key="k"))
        assert (good(again).message.id, good(again).replayed) == (first.id, True)
        if box.claim():
            break


def test_the_same_key_with_other_content_is_a_conflict(box: Outbox) -> None:
    box.record(key="k")
    (refused,) = box.record_all(new_message(key="k", payload=b"[]"))
    assert isinstance(refused, Refusal)
    assert refused.code is IDEMPOTENCY_CONFLICT


def test_a_destination_must_have_been_set(box: Outbox) -> None:
    refused, taken = box.record_all(new_message("nobody"), new_message())
    assert isinstance(refused, Refusal)
    assert refused.code is VALIDATION_FAILED
    assert not good(taken).replayed
