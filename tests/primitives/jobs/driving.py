"""Drives the verbs of jobs without HTTP: a minimal host, and each verb in one line."""

from __future__ import annotations

import hashlib
import inspect
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.access import ANONYMOUS, Principal, Role
from app.clock import micros
from app.db.database import Database
from app.db.tx import Tx
from app.errors import Refusal
from app.primitives.jobs.here import Here
from app.primitives.jobs.model import (
    Beat,
    Caller,
    Claim,
    Claimed,
    Enqueue,
    Enqueued,
    Flow,
    Granted,
    Job,
    NewJob,
    Outcome,
    ReleaseReason,
    Renew,
    Renewed,
    Settle,
    Settled,
    Settlement,
    new_id,
)
from app.primitives.jobs.ops import sweep
from app.primitives.jobs.ops.claim import claim
from app.primitives.jobs.ops.enqueue import enqueue
from app.primitives.jobs.ops.flows import names
from app.primitives.jobs.ops.records import job_of
from app.primitives.jobs.ops.renew import renew
from app.primitives.jobs.ops.settle import settle
from app.primitives.jobs.store import work as store
from app.reservations import settlement_digest
from app.settings import Settings

CALLER = Caller(ANONYMOUS, "request-1")
TOKEN_KEY = secrets.token_bytes(32)

UNSET: Any = object()


def principal(key_id: str, *patterns: str) -> Principal:
    """An API key's holder, with every role."""
    return Principal(key_id, key_id, frozenset({Role.ADMIN}), patterns)


class Host:
    """What an op needs of a process: settings, the token key, and its memory of jobs. Records what it is told."""

    def __init__(self, settings: Settings | None = None, token_key: bytes = TOKEN_KEY) -> None:
        self.settings = settings or Settings()
        self.token_key = token_key
        self.woken: list[dict[Flow, int]] = []
        self.promotions: list[float] = []
        self.abandonments: list[float] = []
        self.memory = Here(
            wake=lambda flows: self.woken.append(dict(flows)),
            promote_in=self.promotions.append,
            abandon_in=self.abandonments.append,
        )

    def state(self, name: str) -> Here:
        assert name == "jobs"
        return self.memory

    def set(self, **settings: Any) -> None:
        """Change settings, as a process with others would have them."""
        self.settings = self.settings.model_copy(update=settings)


@dataclass
class Jobs:
    """The verbs of one process. What is refused is given as a value by the plural verbs, and raised by the others."""

    database: Database
    host: Host
    caller: Caller = CALLER
    woken: list[dict[Flow, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.database.host = self.host
        self.woken = self.host.woken

    @property
    def now(self) -> int:
        return self.database.clock.now()

    def move(self, seconds: float) -> None:
        """Move the database's time as this process sees it."""
        self.database.clock.shift_micros += micros(seconds)

    # -- enqueue ---------------------------------------------------------------------------------------------------------

    def enqueue_all(self, *new: NewJob, caller: Caller | None = None) -> list[Enqueued | Refusal]:
        """One request's jobs."""
        (outcomes,) = self.database.run(enqueue, [Enqueue(new, caller or self.caller)])
        return list(outcomes)

    def enqueue(self, queue: str = "q", type_: str = "t", version: int = 1, **fields: Any) -> Job:
        """One job, which must not be refused and not be there before."""
        (outcome,) = self.enqueue_all(new_job(queue, type_, version, **fields))
        assert not good(outcome).replayed
        return good(outcome).job

    # -- claim -----------------------------------------------------------------------------------------------------------

    def claim_all(self, *claims: Claim) -> list[Claimed | Refusal]:
        """Several requests' claims in one transaction."""
        return list(self.database.run(claim, claims))

    def claim(self, *queues: str, limit: int = 1, **fields: Any) -> tuple[Granted, ...]:
        """What one claim is given."""
        (outcome,) = self.claim_all(self.wanted(*queues, limit=limit, **fields))
        return good(outcome).grants

    def take(self, *queues: str, **fields: Any) -> Granted:
        """One job; there must be one."""
        (granted,) = self.claim(*queues, **fields)
        return granted

    def wanted(
        self,
        *queues: str,
        limit: int = 1,
        lease: float | None = 60,
        claim_id: str | None = None,
        worker: str = "w",
        handlers: Sequence[tuple[str, tuple[int, ...]]] = (),
        caller: Caller | None = None,
    ) -> Claim:
        """The command of a claim."""
        asked = None if lease is None else micros(lease)
        return Claim(queues or ("q",), tuple(handlers), worker, limit, asked, caller or self.caller, claim_id)

    # -- settle and renew ------------------------------------------------------------------------------------------------

    def settle_all(self, *items: Settlement, caller: Caller | None = None) -> list[Settled | Refusal]:
        """One request's settlements."""
        (outcomes,) = self.database.run(settle, [Settle(items, caller or self.caller)])
        return list(outcomes)

    def settle(self, item: Settlement, caller: Caller | None = None) -> Settled:
        (outcome,) = self.settle_all(item, caller=caller)
        return good(outcome)

    def beat_all(self, *beats: Beat, caller: Caller | None = None) -> list[Renewed | Refusal]:
        """One request's heartbeats."""
        (outcomes,) = self.database.run(renew, [Renew(beats, caller or self.caller)])
        return list(outcomes)

    def beat(self, grant: Granted, lease: float = 60, progress: bytes | None = None) -> Renewed:
        (outcome,) = self.beat_all(Beat(grant.id, grant.token, micros(lease), progress))
        return good(outcome)

    # -- sweeps ----------------------------------------------------------------------------------------------------------

    def promote(self, most: int = sweep.BATCH) -> int:
        return int(self.database.run(sweep.promote, [sweep.Batch(most)])[0])

    def abandon(self, most: int = sweep.BATCH) -> int:
        return int(self.database.run(sweep.abandon, [sweep.Batch(most)])[0])

    def purge(self, most: int = sweep.BATCH) -> int:
        return int(self.database.run(sweep.purge, [sweep.Batch(most)])[0])

    def give_back(self, *grants: Granted) -> None:
        self.database.run(sweep.give_back, [Claimed(grants)])

    # -- what is on disk -------------------------------------------------------------------------------------------------

    def job(self, job_id: bytes) -> Job:
        """The job as it is on disk; it must be there."""

        def read(tx: Tx, _: None) -> Job:
            (row,) = store.select_jobs(tx, [job_id])
            return job_of(row, names(tx, [row.flow_id]))

        found: Job = self.database.read(read, None)
        return found

    def rows(self, table: Any, *where: Any) -> list[Any]:
        """Rows of a table past every verb."""
        from sqlalchemy import select

        found: list[Any] = self.database.read(lambda tx, _: tx.conn.execute(select(table).where(*where)).all(), None)
        return found

    def events(self, job_id: bytes) -> list[Any]:
        """The stored events of a job, oldest first."""
        from app.primitives.jobs.tables import job_events

        return sorted(self.rows(job_events, job_events.c.job_id == job_id), key=lambda row: bytes(row.id))

    def kinds(self, job_id: bytes) -> list[str]:
        return [event.kind for event in self.events(job_id)]

    def update(self, table: Any, where: Any, **values: Any) -> None:
        """Change rows past every verb."""

        def write(tx: Tx, commands: Sequence[None]) -> Sequence[None]:
            tx.conn.execute(table.update().where(where).values(**values))
            return commands

        self.database.run(write, [None])

    def pause(self, queue: str) -> None:
        """Pause a queue that is there."""
        from app.primitives.jobs.tables import queues

        self.update(queues, queues.c.name == queue, paused_at=self.now)

    def limit(self, queue: str, max_depth: int) -> None:
        """Give a queue that is there a depth limit, and let this process know it."""
        from app.primitives.jobs.ops.flows import refresh_memory
        from app.primitives.jobs.tables import queues

        self.update(queues, queues.c.name == queue, max_depth=max_depth)
        self.database.read(refresh_memory, None)

    def ask_to_cancel(self, job_id: bytes, reason: str = "not needed") -> None:
        """What a cancel of running work leaves on its row and in its events."""
        from app.primitives.jobs.tables import job_events, jobs

        at = self.now
        self.update(jobs, jobs.c.id == job_id, cancel_requested_at=at)

        def write(tx: Tx, commands: Sequence[None]) -> Sequence[None]:
            tx.conn.execute(
                job_events.insert().values(job_id=job_id, id=new_id(), at=at, kind="cancel_requested", message=reason)
            )
            return commands

        self.database.run(write, [None])

    def repeat(self, op: Callable[..., Any], *commands: Any) -> tuple[list[Any], list[Any]]:
        """Run a unit whose COMMIT was done and whose answer was lost: what the first try gave, and what the second gives.

        The second try is a transaction of its own with `repeated`, the same memo, and nothing that callbacks of the first
        would have left in memory, as `Database.run` does it.
        """
        memo: dict[Any, Any] = {}

        def trying(*, repeated: bool) -> Callable[[Tx, Sequence[Any]], Sequence[Any]]:
            def run(tx: Tx, given: Sequence[Any]) -> Sequence[Any]:
                own = Tx(tx.conn, tx.dialect, tx.now, tx.host, tx.shift, repeated, memo)
                outcomes = op(own, given)
                if repeated:
                    tx.after_commit.extend(own.after_commit)
                return list(outcomes)

            return run

        first = self.database.run(trying(repeated=False), commands)
        return list(first), list(self.database.run(trying(repeated=True), commands))


def new_job(queue: str = "q", type_: str = "t", version: int = 1, **fields: Any) -> NewJob:
    """A job to enqueue. `delay`, `timeout` in seconds; `key` makes the key's digest and a fingerprint of the payload."""
    for name in ("delay", "timeout"):
        if fields.get(name) is not None:
            fields[name] = micros(fields[name])
    fields.setdefault("payload", b"{}")
    key = fields.pop("key", None)
    if key is not None:
        fields["key_digest"] = hashlib.sha256(key.encode()).digest()
        fields.setdefault("fingerprint", settlement_digest(queue, type_, version, fields["payload"]))
    return NewJob(id=fields.pop("id", None) or new_id(), flow=(queue, type_, version), **fields)


def done(grant: Granted, result: bytes | None = None) -> Settlement:
    return _settlement(grant, Outcome.SUCCEEDED, result=result)


def failed(
    grant: Granted, category: str = "broken", *, retry: bool = True, delay: float | None = None, **told: Any
) -> Settlement:
    return _settlement(grant, Outcome.FAILED, category=category, retry=retry, delay=delay, **told)


def unknown(grant: Granted, category: str = "no_answer", **told: Any) -> Settlement:
    return _settlement(grant, Outcome.UNKNOWN, category=category, **told)


def released(grant: Granted, reason: ReleaseReason = ReleaseReason.SHUTDOWN, delay: float | None = None) -> Settlement:
    return _settlement(grant, Outcome.RELEASED, reason=reason, delay=delay)


OUTCOMES: Mapping[str, Callable[[Granted], Settlement]] = {
    "succeeded": done,
    "succeeded with a result": lambda grant: done(grant, b'{"n": 1}'),
    "failed, to be tried again": failed,
    "failed, to be tried again at once": lambda grant: failed(grant, delay=0),
    "failed for good": lambda grant: failed(grant, retry=False),
    "unknown": unknown,
    "released": released,
    "released for later": lambda grant: released(grant, ReleaseReason.THROTTLED, 30),
}


def every_outcome(check: Callable[..., None]) -> Callable[..., None]:
    """Make a test that runs `check` for the `name` of each outcome, in a `queue` of its own on the same database."""
    signature = inspect.signature(check)
    fixtures = [one for name, one in signature.parameters.items() if name not in ("name", "queue")]

    def test(**given: Any) -> None:
        for number, name in enumerate(OUTCOMES):
            try:
                check(**given, name=name, queue=f"outcome-{number}")
            except BaseException as error:
                error.add_note(f"the outcome was: {name}")
                raise

    test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
    test.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]  # what pytest reads
    return test


def _settlement(grant: Granted, outcome: Outcome, **content: Any) -> Settlement:
    digest = settlement_digest(
        outcome.value, *(value if isinstance(value, bytes) else repr(value) for _, value in sorted(content.items()))
    )
    if content.get("delay") is not None:
        content["delay"] = micros(content["delay"])
    return Settlement(grant.id, grant.token, outcome, digest, **content)


def good(outcome: Any) -> Any:
    """The outcome, which must not be a refusal."""
    if isinstance(outcome, Refusal):
        raise outcome
    return outcome


def reason(outcome: Any) -> str:
    """Why a token was refused: the reason of a `reservation_lost`, or the code of another refusal."""
    assert isinstance(outcome, Refusal), outcome
    return str(outcome.extra.get("reason", outcome.code.name))
