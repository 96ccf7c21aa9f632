"""The development guard: the database refuses a producer's INSERT that stands outside of a transaction.

It is put on and taken off by an operator on the database itself. No migration knows it, and none minds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.db.tx import Tx
from app.primitives.outbox.store import guard as store


@dataclass(frozen=True, slots=True)
class Turn:
    """Put the guard on, or take it off. Either may be repeated."""

    on: bool


@dataclass(frozen=True, slots=True)
class Guard:
    """How it stands. `refuses`: what it refuses on this server, in words. `blind`: this server shows no transactions."""

    on: bool
    refuses: str
    blind: bool = False


def turn(tx: Tx, commands: Sequence[Turn]) -> list[Guard]:
    """Race: two that put it on at once; the second finds it there, and is told of an error that it may repeat.

    Guarantee: it is not put on where the server does not show what it goes by; it would refuse nothing.
    """
    return [_turn(tx, command) for command in commands]


def _turn(tx: Tx, command: Turn) -> Guard:
    if command.on and not store.is_shown(tx):
        return Guard(store.is_there(tx), store.guard_of(tx).refuses, blind=True)
    store.drop(tx)  # also before it is put on: it may be an older release's
    if command.on:
        store.create(tx)
    return Guard(command.on, store.guard_of(tx).refuses)


def read(tx: Tx, _command: None = None) -> Guard:
    return Guard(store.is_there(tx), store.guard_of(tx).refuses)
