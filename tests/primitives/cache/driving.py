"""Drives the verbs of the cache without HTTP, each in one line."""

from __future__ import annotations

from typing import Any

from app.access import Caller
from app.clock import micros
from app.ids import new_id
from app.primitives.cache.here import Here
from app.primitives.cache.model import (
    Clear,
    Fill,
    Filled,
    Found,
    Namespace,
    OnFailure,
    Policy,
    Put,
    PutPolicy,
    Remember,
    Remembered,
    Stored,
    Value,
    digest_of,
    place_of,
)
from app.primitives.cache.ops import policies, sweep
from app.primitives.cache.ops.fill import fill
from app.primitives.cache.ops.read import peek, read
from app.primitives.cache.ops.remember import give_back, remember
from app.primitives.cache.ops.write import forget, put
from app.primitives.cache.tables import entries, namespaces
from app.settings import Settings
from tests.primitives.verbs import CALLER, Host, Verbs, good, reason

__all__ = ["NS", "Cache", "good", "host", "reason"]

NS = "plans"


def host(settings: Settings | None = None) -> Host:
    return Host("cache", Here, settings)


class Cache(Verbs):
    """The verbs of one process. What is refused is given as a value by the plural verbs, and raised by the others."""

    def wanted(
        self, key: str = "k", *, ns: str = NS, lease: float = 30, claim_id: str | None = None, caller: Caller = CALLER
    ) -> Remember:
        return Remember(place_of(ns, key), micros(lease), caller, claim_id)

    def remember_all(self, *commands: Remember) -> list[Remembered]:
        return list(self.database.run(remember, commands))

    def remember(self, key: str = "k", **options: Any) -> Remembered:
        return self.remember_all(self.wanted(key, **options))[0]

    def take(self, key: str = "k", **options: Any) -> Remembered:
        """The filling of an entry, which must be to be had."""
        taken = self.remember(key, **options)
        assert taken.found is Found.FILL, taken
        return taken

    def putting(
        self,
        value: str = "1",
        key: str = "k",
        *,
        ns: str = NS,
        ttl: float | None = 60,
        stale: float | None = None,
        version: str | None = None,
    ) -> Put:
        lasting = None if ttl is None else micros(ttl), None if stale is None else micros(stale)
        return Put(place_of(ns, key), value.encode(), *lasting, version)

    def put_all(self, *commands: Put) -> list[Any]:
        return list(self.database.run(put, commands))

    def put(self, value: str = "1", key: str = "k", **options: Any) -> Stored:
        return good(self.put_all(self.putting(value, key, **options))[0])  # type: ignore[no-any-return]

    def filling(
        self, taken: Remembered, value: str | None = "1", *, ttl: float | None = 60, stale: float | None = None
    ) -> Fill:
        assert taken.place is not None
        assert taken.token is not None
        lasting = None if ttl is None else micros(ttl), None if stale is None else micros(stale)
        return Fill(taken.place, taken.token, None if value is None else value.encode(), *lasting)

    def fill_all(self, *commands: Fill) -> list[Any]:
        return list(self.database.run(fill, commands))

    def try_fill(self, taken: Remembered, value: str | None = "1", **options: Any) -> Any:
        return self.fill_all(self.filling(taken, value, **options))[0]

    def fill(self, taken: Remembered, value: str | None = "1", **options: Any) -> Filled:
        return good(self.try_fill(taken, value, **options))  # type: ignore[no-any-return]

    def fail(self, taken: Remembered) -> Filled:
        return self.fill(taken, None, ttl=None)

    def read(self, key: str = "k", *, ns: str = NS) -> Value | None:
        found: Value | None = self.database.read(read, [digest_of(ns, key)])[0]
        return found

    def text(self, key: str = "k", *, ns: str = NS) -> str | None:
        """The value, or None."""
        found = self.read(key, ns=ns)
        return None if found is None else found.value.decode()

    def delete(self, *keys: str, ns: str = NS) -> list[bool]:
        return list(self.database.run(forget, [place_of(ns, key) for key in keys]))

    def clear(self, ns: str = NS) -> int:
        return int(self.database.run(policies.clear, [Clear(ns, CALLER, new_id())])[0])

    def policy(
        self,
        *,
        ns: str = NS,
        ttl: float | None = None,
        stale: float = 0,
        version: str | None = None,
        on_failure: OnFailure = OnFailure.SERVE_STALE,
        max_entries: int | None = None,
        max_bytes: int | None = None,
    ) -> Namespace:
        rules = Policy(None if ttl is None else micros(ttl), micros(stale), version, on_failure, max_entries, max_bytes)
        found: Namespace = self.database.run(policies.put_policies, [PutPolicy(ns, rules, CALLER, new_id())])[0]
        return found

    def give_back(self, taken: Remembered) -> None:
        self.database.run(give_back, [taken])

    def peek(self, *keys: str) -> list[str]:
        of = {digest_of(NS, key): key for key in keys}
        return [of[digest] for digest in self.database.read(peek, list(of))]

    def purge(self, most: int = sweep.BATCH) -> int:
        return int(self.database.run(sweep.purge, [sweep.Batch(most)])[0])

    def sweep_cleared(self, most: int = sweep.BATCH) -> int:
        return int(self.database.run(sweep.sweep_cleared, [sweep.Batch(most)])[0])

    def make_room(self, most: int = sweep.BATCH) -> int:
        return int(self.database.run(sweep.make_room, [sweep.Batch(most)])[0])

    def note_used(self) -> int:
        used = self.host.here.take_used(sweep.BATCH)
        return int(self.database.run(sweep.note_used, [used])[0])

    def counted(self, ns: str = NS) -> tuple[int, int]:
        """(values, their bytes) by the namespace's own count, which must be what the rows of its generation hold."""
        (row,) = self.rows(namespaces, namespaces.c.name == ns)
        held = [
            one
            for one in self.rows(entries, entries.c.namespace == ns)
            if one.generation == row.generation and one.value is not None
        ]
        assert (row.entries, row.bytes) == (len(held), sum(len(one.value) for one in held))
        assert all(one.size == len(one.value) for one in held)
        return row.entries, row.bytes
