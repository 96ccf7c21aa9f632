"""Terms as the contracts would put them, and policies of queues; for tests that drive jobs without that primitive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.clock import micros
from app.db.database import Database
from app.db.tx import Tx
from app.primitives.jobs.model.terms import Handler, Terms
from app.primitives.jobs.ops import queues, terms
from tests.primitives.jobs.driving import CALLER, Jobs

HANDLER = Handler("graves", "bury", 3)


def promise(database: Database, type_: str = "t", version: int = 1, **fields: Any) -> Terms:
    """Put terms and commit them. `timeout`, `lease`, `retry_until` in seconds."""
    for name in ("timeout", "lease", "retry_until"):
        if fields.get(name) is not None:
            fields[name] = micros(fields[name])
    made = Terms(type_, version, **fields)

    def write(tx: Tx, commands: Sequence[Terms]) -> Sequence[None]:
        return [terms.put(tx, one) for one in commands]

    database.run(write, [made])
    return made


def read(jobs: Jobs, *pairs: tuple[str, int]) -> dict[tuple[str, int], Terms]:
    found: dict[tuple[str, int], Terms] = jobs.database.read(lambda tx, _: terms.read(tx, pairs), None)
    return found


def set_policy(jobs: Jobs, queue: str, policy: str | None) -> None:
    """As an operator does, in this process."""
    jobs.database.run(queues.put, [queues.Put(queue, CALLER, contract_policy=policy)])
