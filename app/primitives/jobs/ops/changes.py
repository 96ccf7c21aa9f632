"""What an operator's action does to jobs, whether it names one or filters many. One place decides both."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from app.db.tx import Tx
from app.errors import OVERLOADED, Refusal
from app.primitives.jobs.model import Caller, Control, Figure, Flow, Kind, Mark, State, Verdict, new_id
from app.primitives.jobs.ops import flows, keys, lines, moves, terminal
from app.primitives.jobs.ops.records import job_of
from app.primitives.jobs.ops.uniques import Returning
from app.primitives.jobs.store import control as store
from app.primitives.jobs.store import held

LEFT_BY = {Verdict.SUCCEEDED: State.SUCCEEDED, Verdict.RETRY: State.AVAILABLE, Verdict.DEAD: State.DEAD}


@dataclass(slots=True)
class Changes:
    """What one transaction does to jobs whose rows it has locked; collected, then written with a few statements."""

    tx: Tx
    names: dict[int, Flow]
    cancelled: dict[bytes, int] = field(default_factory=dict)  # id -> fence, as for the others
    asked: dict[bytes, int] = field(default_factory=dict)
    retried: dict[tuple[State, State], dict[bytes, int]] = field(default_factory=lambda: defaultdict(dict))  # from, to
    judged: dict[State, dict[bytes, int]] = field(default_factory=lambda: defaultdict(dict))
    requests: dict[bytes, str] = field(default_factory=dict)
    purges: dict[bytes, int] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    ready: Counter[Flow] = field(default_factory=Counter)
    returning: Returning | None = None
    left: dict[bytes, tuple[int, State]] = field(
        default_factory=dict
    )  # jobs with keys: their marks, the state they come to
    deaths: list[terminal.Death] = field(default_factory=list)
    freed: frozenset[bytes] = frozenset()  # jobs that came to a line and, by `write`, to a slot

    def expect(self, rows: Iterable[Any]) -> None:
        """Look up the unique keys of ended jobs that may be retried, whose rows are locked."""
        self.returning = Returning(self.tx, rows, self.names)

    def cancel(self, row: Any, caller: Caller, reason: str) -> None:
        if row.state == State.RUNNING:
            self.asked[row.id] = row.fence
            self._tell(row, Kind.CANCEL_REQUESTED, caller, message=reason)
        else:
            self.cancelled[row.id] = row.fence
            self._ends(row, caller, State.CANCELLED)
            self._tell(row, Kind.CANCELLED, caller, message=reason)

    def retry(self, row: Any, caller: Caller, reason: str) -> Refusal | None:
        """Gives why not, where another job holds the job's unique key."""
        if self.returning is not None and (taken := self.returning.take(job_of(row, self.names))) is not None:
            return taken
        self._again(row)
        self._tell(row, Kind.RETRIED, caller, message=reason)
        return None

    def _again(self, row: Any) -> None:
        """With a fresh budget: available, or, with a concurrency key, to its line."""
        into = State.BLOCKED if row.marks & Mark.CONCURRENCY else State.AVAILABLE
        self.retried[State(row.state), into][row.id] = row.fence
        if into is State.AVAILABLE:
            self.ready[self.names[row.flow_id]] += 1

    def reconcile(self, row: Any, command: Control, verdict: Verdict) -> None:
        if verdict is Verdict.RETRY:
            self._again(row)
        else:
            self.judged[LEFT_BY[verdict]][row.id] = row.fence
            self._ends(row, command.caller, LEFT_BY[verdict])
            if verdict is Verdict.DEAD:
                self.deaths.append(terminal.Death(row, self.names[row.flow_id], terminal.as_it_is(row)))
        self._tell(
            row,
            Kind.RECONCILED,
            command.caller,
            category=verdict.value,
            message=command.reason or None,
            reference=command.reference,
            detail=command.evidence,
        )

    def _ends(self, row: Any, caller: Caller, state: State) -> None:
        if row.marks:
            self.left[row.id] = row.marks, state
        self.requests[row.id] = caller.request_id
        self.purges[row.id] = moves.purge_at(self.tx, self.names[row.flow_id][0])

    def _tell(self, row: Any, kind: Kind, caller: Caller, **told: Any) -> None:
        identity = self.tx.memo.setdefault(("event", row.id), new_id())
        self.events.append(
            moves.event(
                self.tx,
                row,
                kind,
                id=identity,
                actor=caller.principal.key_id,
                request_id=caller.request_id,
                claimed_at=None,
                worker=None,
                grant_digest=None,
                **told,
            )
        )

    def write(self) -> None:
        """Write everything, and wake who waits for work once it is committed.

        Race: a server that does not hold its locks let somebody else in between: then nothing is written at all.
        """
        expected = len(self.events)
        if not expected:
            return
        written = 0
        if self.cancelled:
            written += store.update_cancelled(self.tx, self.cancelled, *self._of(self.cancelled))
        if self.asked:
            written += store.update_cancel_requested(self.tx, self.asked)
        for (state, into), fences in self.retried.items():
            written += store.update_retried(self.tx, fences, state, into=into)
        for state, fences in self.judged.items():
            written += store.update_verdict(self.tx, fences, state, *self._of(fences))
        if written != expected:
            raise Refusal(
                OVERLOADED, "Another call changed the same job at this moment; nothing was done.", retry_after_seconds=1
            )
        held.insert_events(self.tx, self.events)
        terminal.handle(self.tx, self.deaths)
        self._follow()
        memory, ready = flows.here(self.tx), self.ready
        if self.deaths:
            now, dead = self.tx.now, Counter((death.row.flow_id, Figure.DEAD) for death in self.deaths)
            self.tx.on_commit(lambda: memory.count(now, dead))
        if ready:
            self.tx.on_commit(lambda: memory.came_back(ready))

    def _follow(self) -> None:
        """What the jobs' keys have to follow."""
        keys.left(self.tx, self.left)
        entering = [job_id for (_, into), those in self.retried.items() if into is State.BLOCKED for job_id in those]
        if entering:
            self.freed = lines.move(self.tx, entering=sorted(entering))
        if self.returning is not None:
            self.returning.write()

    def _of(self, fences: dict[bytes, int]) -> tuple[dict[bytes, str], dict[bytes, int]]:
        return {key: self.requests[key] for key in fences}, {key: self.purges[key] for key in fences}
