"""Values: put, read, delete, clear, versions, limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import event

from app.db.database import Database
from app.primitives.cache.model import Found, digest_of
from app.primitives.cache.tables import entries, namespaces
from tests.primitives.cache.driving import NS, Cache, reason


def test_a_value_is_fresh_then_stale_then_gone(cache: Cache) -> None:
    cache.put('{"a":1}', ttl=10, stale=5)
    found = cache.read()
    assert found is not None
    assert (found.found, found.value, found.filling) == (Found.FRESH, b'{"a":1}', False)
    cache.move(10)
    found = cache.read()
    assert found is not None
    assert found.found is Found.STALE
    assert 10 <= found.age / 1e6 < 13
    cache.move(5)
    assert cache.read() is None


def test_a_put_takes_the_place_of_what_was_there(cache: Cache) -> None:
    cache.put("11", ttl=10, stale=1000)
    cache.put("2", ttl=20)
    assert cache.text() == "2"
    assert cache.counted() == (1, 1)
    cache.move(20)
    assert cache.read() is None, "nothing of the earlier value is left, nor of its time"


def test_many_values_in_one_transaction_and_of_one_key_the_last(cache: Cache) -> None:
    cache.put_all(*(cache.putting(str(number), f"k{number % 3}") for number in range(7)), cache.putting(ns="other"))
    assert [cache.text(f"k{number}") for number in range(3)] == ["6", "4", "5"]
    assert cache.counted() == (3, 3)
    assert cache.counted("other") == (1, 1)


def test_keys_are_bytes(cache: Cache) -> None:
    keys = ["a", "A", "a ", "é", "😀", "a/b", "a%2Fb", "e\u0301"]
    for number, key in enumerate(keys):
        cache.put(str(number), key)
    assert [cache.text(key) for key in keys] == [str(number) for number in range(len(keys))]
    assert digest_of("a", "b:c") != digest_of("a:b", "c")


def test_a_fresh_value_is_one_statement_by_primary_keys(cache: Cache, database: Database) -> None:
    cache.put()
    seen: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    engine = database._connections.engine("read")
    event.listen(engine, "before_cursor_execute", note)
    try:
        assert cache.text() == "1"
    finally:
        event.remove(engine, "before_cursor_execute", note)
    (statement,) = (one for one in seen if "cache_" in one)
    assert statement.count("JOIN") == 1, "the entry and its namespace at once"


def test_a_deleted_value_is_gone(cache: Cache) -> None:
    cache.put()
    cache.put("2", "other")
    assert cache.delete("k", "k", "unknown") == [True, False, False]
    assert cache.read() is None
    assert cache.text("other") == "2"
    assert cache.counted() == (1, 1)
    cache.put("3")
    assert cache.text() == "3"


def test_a_delete_of_what_is_over_deletes_nothing(cache: Cache) -> None:
    cache.put(ttl=1)
    cache.move(1)
    assert cache.delete("k") == [False]
    assert cache.counted() == (0, 0)


# -- namespaces ------------------------------------------------------------------------------------------------------------


def test_a_clear_takes_all_of_one_namespace_and_nothing_of_another(cache: Cache) -> None:
    for number in range(5):
        cache.put(str(number), f"k{number}")
    cache.put("9", ns="other")
    assert cache.clear() == 5
    assert [cache.text(f"k{number}") for number in range(5)] == [None] * 5
    assert cache.text(ns="other") == "9"
    assert cache.counted() == (0, 0)
    assert cache.clear() == 0
    cache.put("7", "k1")
    assert (cache.text("k1"), cache.text("k2")) == ("7", None)
    assert cache.counted() == (1, 1)


def test_a_clear_writes_one_row_and_sweeps_delete_the_rest_in_batches(cache: Cache) -> None:
    cache.put_all(*(cache.putting(str(number), f"k{number}") for number in range(25)))
    cache.clear()
    assert len(cache.rows(entries)) == 25
    cache.put("1", "new")
    assert [cache.sweep_cleared(10) for _ in range(4)] == [10, 10, 5, 0]
    assert [row.value for row in cache.rows(entries)] == [b"1"]
    assert cache.counted() == (1, 1)


def test_a_new_version_takes_everything_away_at_once(cache: Cache) -> None:
    cache.policy(version="v1")
    cache.put("1")
    cache.policy(version="v1", ttl=5)
    assert cache.text() == "1", "the version is the same"
    cache.policy(version="v2")
    assert cache.read() is None
    cache.put("2", version="v2")
    cache.policy(version="v1")
    assert cache.read() is None, "an earlier version brings nothing back"


def test_a_value_of_another_version_is_refused(cache: Cache) -> None:
    cache.put(version="v0")
    found = cache.read()
    assert found is not None
    assert found.version == "v0"
    cache.policy(version="v2")
    old, own, said = cache.put_all(
        cache.putting("1", version="v1"), cache.putting("2", "own"), cache.putting("3", "said", version="v2")
    )
    assert reason(old) == "state_conflict"
    assert (own.version, said.version) == ("v2", "v2")
    assert cache.read() is None


def test_what_a_policy_says_holds_for_values_that_say_nothing(cache: Cache) -> None:
    assert reason(cache.put_all(cache.putting(ttl=None))[0]) == "validation_failed"
    cache.policy(ttl=10, stale=5)
    stored = cache.put(ttl=None)
    assert (stored.stale_until - stored.fresh_until) == 5_000_000
    assert 0 < stored.fresh_until - cache.now <= 10_000_000
    own = cache.put(ttl=3, stale=0)
    assert own.stale_until == own.fresh_until


# -- limits ----------------------------------------------------------------------------------------------------------------


def test_what_was_used_least_recently_makes_room(cache: Cache) -> None:
    cache.policy(max_entries=3)
    for key in ("a", "b", "c"):
        cache.put(key=key, ttl=9999)
        cache.move(120)
    assert cache.text("a") == "1"
    assert cache.note_used() == 1
    cache.put(key="d", ttl=9999)
    assert [cache.text(key) for key in "abcd"] == ["1", None, "1", "1"]
    assert cache.counted() == (3, 3)


def test_use_is_noted_once_a_minute_and_only_where_it_counts(cache: Cache) -> None:
    cache.put(ttl=999)
    cache.move(100)
    cache.read()
    assert cache.note_used() == 0, "this namespace has no limits"
    cache.policy(max_entries=10)
    cache.read()
    cache.read()
    assert cache.note_used() == 1
    cache.read()
    assert cache.note_used() == 0


def test_bytes_are_limited_and_never_exceeded_by_one_value(cache: Cache) -> None:
    cache.policy(max_bytes=10)
    cache.put("1234", "a")
    cache.move(1)
    cache.put("1234", "b")
    cache.move(1)
    cache.put("12345", "c")
    assert [cache.text(key) for key in "abc"] == [None, "1234", "12345"]
    assert cache.counted() == (2, 9)
    assert reason(cache.put_all(cache.putting("12345678901", "d"))[0]) == "payload_too_large"
    assert cache.counted() == (2, 9), "and nothing made room for what was refused"


def test_more_values_in_one_transaction_than_there_may_be(cache: Cache) -> None:
    cache.policy(max_entries=4)
    cache.put_all(*(cache.putting(key=f"k{number}") for number in range(20)))
    assert cache.counted() == (4, 4)


def test_a_limit_that_comes_later_is_met_by_a_sweep(cache: Cache) -> None:
    cache.put_all(*(cache.putting(key=f"k{number}") for number in range(20)))
    cache.policy(max_entries=5)
    assert cache.counted() == (20, 20)
    assert cache.make_room() == 15
    assert cache.make_room() == 0
    assert cache.counted() == (5, 5)


def test_what_is_over_is_purged_and_not_counted_any_more(cache: Cache) -> None:
    cache.put_all(*(cache.putting(key=f"k{number}", ttl=10) for number in range(5)), cache.putting(key="long", ttl=999))
    cache.move(9)
    assert cache.purge() == 0
    cache.move(100)
    assert cache.purge(3) == 3
    assert cache.purge(3) == 2
    assert cache.counted() == (1, 1)


def test_values_that_a_lost_answer_has_stored_count_once(cache: Cache) -> None:
    """The COMMIT was done, and the unit runs again."""
    from app.primitives.cache.ops.write import put

    first, second = cache.repeat(put, cache.putting("1", "a"), cache.putting("2", "b"))
    assert [one.version for one in (*first, *second)] == [None] * 4
    assert cache.counted() == (2, 2)


@pytest.mark.engines("mariadb", "mysql", "postgresql")
def test_replicas_share_values(cache: Cache, replica: Callable[[], Cache]) -> None:
    other = replica()
    cache.put("1")
    assert other.text() == "1"
    other.clear()
    assert cache.text() is None
    (row,) = cache.rows(namespaces, namespaces.c.name == NS)
    assert row.generation == 1
