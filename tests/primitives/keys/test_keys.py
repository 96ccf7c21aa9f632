"""The verbs of API keys and the audit that goes with them, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.access import Principal, Role
from app.clock import MICROS
from app.db.database import Database
from app.errors import Refusal
from app.primitives.audit import ops as audit
from app.primitives.audit.model import Entry, Filter, new_id
from app.primitives.keys import ops
from app.primitives.keys.model import Create, Revoke, mint

BY = Principal("admin0000000", "the admin", frozenset({Role.ADMIN}))


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    database = Database(migrated_url)
    database.open()
    yield database
    database.shutdown()


def command(*roles: Role, name: str = "n", patterns: tuple[str, ...] = (), expires_at: int | None = None) -> Create:
    new = mint()
    return Create(new.id, new.digest, name, roles or (Role.ADMIN,), patterns, expires_at, BY, "r-1", new_id())


def create(database: Database, *commands: Create) -> list[Any]:
    return list(database.run(ops.create, commands))


def entries(database: Database, **wanted: Any) -> list[Any]:
    return list(database.read(audit.list_entries, Filter(limit=500, **wanted)))


def test_a_key_is_stored_as_it_was_asked_for(database: Database) -> None:
    asked = command(Role.ADMIN, Role.WORKER, name="büro 😀", patterns=("a.*", "b"), expires_at=123456789)
    (key,) = create(database, asked)
    assert (key.id, key.digest, key.name, key.roles, key.patterns) == (
        asked.id,
        asked.digest,
        asked.name,
        asked.roles,
        asked.patterns,
    )
    assert (key.expires_at, key.revoked_at, key.last_used_at) == (123456789, None, None)
    assert abs(key.created_at - database.clock.now()) < 60 * MICROS
    assert database.read(ops.all_keys, None) == [key]


def test_ids_that_differ_in_case_alone_are_two_keys(database: Database) -> None:
    one = replace(command(), id="abcdefABCDEF")
    other = replace(command(), id="ABCDEFabcdef")
    assert [key.id for key in create(database, one, other)] == [one.id, other.id]
    database.run(ops.revoke, [Revoke(one.id, BY, None, new_id())])
    assert {key.id: key.revoked_at is None for key in database.read(ops.all_keys, None)} == {
        one.id: False,
        other.id: True,
    }


def test_the_first_key_must_be_an_admins(database: Database) -> None:
    first, second, third = create(database, command(Role.WORKER), command(Role.ADMIN), command(Role.WORKER))
    assert isinstance(first, Refusal)
    assert first.errors[0].pointer == "#/roles"
    assert (second.roles, third.roles) == ((Role.ADMIN,), (Role.WORKER,))


def test_a_command_that_runs_again_makes_one_key_and_one_entry(database: Database) -> None:
    asked = command()
    (key,) = create(database, asked)
    assert create(database, asked) == [key]
    assert len(entries(database, target=asked.id, kind="api_key")) == 1


def test_a_revocation_is_for_good_and_may_be_repeated(database: Database) -> None:
    (key,) = create(database, command())
    revoke = Revoke(key.id, BY, "r-2", new_id())
    (first,) = database.run(ops.revoke, [revoke])
    (again,) = database.run(ops.revoke, [Revoke(key.id, BY, "r-3", new_id())])
    assert (first.replayed, again.replayed) == (False, True)
    assert first.key == again.key
    assert first.key.revoked_at is not None
    (stranger,) = database.run(ops.revoke, [Revoke("0" * 12, BY, None, new_id())])
    assert isinstance(stranger, Refusal)
    assert stranger.code.name == "not_found"
    assert [entry.action for entry in entries(database, target=key.id)] == ["api_keys.revoke", "api_keys.create"]


def test_the_last_use_only_moves_forward(database: Database) -> None:
    one, other = create(database, command(), command())
    database.run(ops.touch, [{one.id: 50, "unknown": 7}, {one.id: 40, other.id: 60}])
    database.run(ops.touch, [{one.id: 30}])
    assert {key.id: key.last_used_at for key in database.read(ops.all_keys, None)} == {one.id: 50, other.id: 60}


def test_keys_are_listed_newest_first_without_gaps(database: Database) -> None:
    made = [create(database, command(name=f"k{index}"))[0] for index in range(5)] + create(
        database, command(), command()
    )
    expected = sorted(((key.created_at, key.id) for key in made), reverse=True)
    seen: list[tuple[int, str]] = []
    after = None
    while True:
        rows = database.read(ops.list_keys, (2, after))
        seen += [(key.created_at, key.id) for key in rows[:2]]
        if len(rows) <= 2:
            break
        after = seen[-1]
    assert seen == expected


def test_an_entry_stands_or_falls_with_its_transaction(database: Database) -> None:
    def failing(tx: Any, commands: Any) -> Any:
        audit.record(tx, [Entry(BY, "demo.act", "demo", "x")])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.run(failing, [None])
    assert entries(database) == []


def test_entries_are_filtered_by_everything_that_the_list_offers(database: Database) -> None:
    def write(tx: Any, commands: Any) -> Any:
        audit.record(tx, commands)
        return [None] * len(commands)

    database.run(write, [
        Entry(BY, "demo.act", "demo", "é😀", "because", "r-1", {"n": 1}),
        Entry(BY, "demo.other", "demo", "É😀"),
        Entry(replace(BY, key_id="other"), "demo.act", "thing", "é😀"),
    ])  # fmt: skip
    assert [bytes(entry.details) for entry in entries(database, action="demo.act", kind="demo")] == [b'{"n":1}']
    assert [entry.reason for entry in entries(database, kind="demo", target="é😀")] == ["because"]
    assert [entry.kind for entry in entries(database, actor="other")] == ["thing"]
    now = database.clock.now()
    assert len(entries(database, since=now - 60 * MICROS, until=now + 60 * MICROS)) == 3
    assert entries(database, since=now + 60 * MICROS) == []
    assert entries(database, until=now - 60 * MICROS) == []
    newest = entries(database)
    assert [entry.id for entry in entries(database, before=newest[0].id)] == [entry.id for entry in newest[1:]]


@pytest.mark.engines("sqlite")
def test_nothing_that_is_stored_shows_the_key(database: Database) -> None:
    new = mint()
    create(database, Create(new.id, new.digest, "n", (Role.ADMIN,), (), None, BY, None, new_id()))
    assert new.text not in str(database.read(ops.all_keys, None))
    assert new.digest.hex() not in repr(database.read(ops.all_keys, None))
