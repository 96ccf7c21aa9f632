"""Checks: past its time the service asks the producer of a prepared message what became of its transaction.

The call itself is made by `delivery/checks.py`, with no transaction open: `take` gives out what is to be asked and moves the
message's next look past the call, so that one process asks at a time; `tell` writes down what came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.access import Caller, Principal
from app.clock import backoff, micros
from app.db.tx import Tx
from app.ids import new_id
from app.primitives.outbox.model.checks import Answer
from app.primitives.outbox.model.commands import Decide
from app.primitives.outbox.model.states import Check, State
from app.primitives.outbox.ops.decide import decide
from app.primitives.outbox.store import checks as store
from app.primitives.outbox.store import due, held, work

BY_CHECK = Caller(Principal("check", "check", frozenset()), "check")
BEYOND_CALL = micros(30)  # for what the call takes and its writing down, also where the database is slow


@dataclass(frozen=True, slots=True)
class Take:
    """At most so many questions."""

    most: int


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be asked about one message."""

    id: bytes
    message_key: str
    url: str


@dataclass(frozen=True, slots=True)
class Told:
    """What came of one question. `audit_id`: see `Decide`."""

    id: bytes
    answer: Answer


def any_due(tx: Tx, _command: None) -> bool:
    """Whether there is anything to ask about, without a lock."""
    return due.any_due(tx, State.PREPARED)


def take(tx: Tx, commands: Sequence[Take]) -> list[tuple[Question, ...]]:
    """Prepared messages whose time has passed: those that can be asked about, the longest due first. The others are left to an
    operator. Guarantee: time that has not passed costs nothing of the budget, and neither does being taken.
    """
    rows = due.lock_due(tx, State.PREPARED, commands[0].most)
    if not rows:
        return [() for _ in commands]
    checks = {bytes(row.message_id): row for row in store.select_checks(tx, [row.id for row in rows])}
    ids = [bytes(row.id) for row in rows if bytes(row.id) in checks]
    asking = [one for one in ids if checks[one].url is not None and not _spent(tx, checks[one])]
    left = [one for one in ids if one not in set(asking)]
    lease = micros(tx.host.settings.outbox_ask_timeout_seconds) + BEYOND_CALL
    looks: dict[bytes, int | None] = dict.fromkeys(asking, tx.now + lease)
    _look_again(tx, looks | dict.fromkeys(left))
    if left:
        store.update_asked(tx, [_row(checks[one], state=Check.OPERATOR) for one in left])
    keys = {bytes(row.message_id): bytes(row.message_key).decode() for row in work.select_contents(tx, asking)}
    given = tuple(Question(one, keys[one], bytes(checks[one].url).decode()) for one in asking)
    return [given, *(() for _ in commands[1:])]


def tell(tx: Tx, commands: Sequence[Told]) -> list[None]:
    """Decide what was answered; of the rest, ask again by a backoff, until the budget is spent.

    Race: a decision that was quicker stands; the answer is then nothing.
    """
    decided = [
        Decide(one.id, one.answer.decision, BY_CHECK, tx.memo.setdefault(("audit", one.id), new_id()))
        for one in commands
        if one.answer.decision is not None
    ]
    if decided:
        decide(tx, decided)
    open_ = {one.id: one.answer for one in commands if one.answer.decision is None}
    if open_:
        rows = [row for row in held.lock_messages(tx, sorted(open_)) if row.state == State.PREPARED]
        _put_off(tx, {bytes(row.id): open_[bytes(row.id)] for row in rows})
    return [None for _ in commands]


def _put_off(tx: Tx, answers: dict[bytes, Answer]) -> None:
    changes, looks = [], dict[bytes, int | None]()
    for row in store.select_checks(tx, sorted(answers)):
        message_id = bytes(row.message_id)
        answer = answers[message_id]
        change = _row(
            row, asked=row.asked + answer.reached, failures=row.failures + 1, answer=answer.said, answered_at=tx.now
        )
        if change["b_asked"] >= tx.host.settings.outbox_check_budget:
            change["b_state"], looks[message_id] = int(Check.OPERATOR), None
        else:
            pauses = tx.host.settings.outbox_ask_backoff_seconds
            looks[message_id] = tx.now + backoff(pauses, change["b_failures"])
        changes.append(change)
    if changes:
        store.update_asked(tx, changes)
        _look_again(tx, looks)


def _spent(tx: Tx, check: Any) -> bool:
    settings = tx.host.settings
    too_late = tx.now > check.decide_at + micros(settings.outbox_ask_give_up_seconds) and check.failures > 0
    return bool(check.asked >= settings.outbox_check_budget or too_late)


def _look_again(tx: Tx, looks: dict[bytes, int | None]) -> None:
    store.update_looks(tx, [{"b_id": one, "b_due_at": at} for one, at in sorted(looks.items())])


def _row(check: Any, **changed: Any) -> dict[str, Any]:
    """What `update_asked` writes: the row as it is, but for what has changed."""
    names = ("message_id", "state", "asked", "failures", "answer", "answered_at")
    row = {f"b_{name}": getattr(check, name) for name in names}
    return row | {f"b_{name}": value for name, value in changed.items()}
