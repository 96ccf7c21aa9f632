"""Admission: whether a new job may come in, by the contract of its type and the policy of its queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from app.db.tx import Tx
from app.errors import CONTRACT_REQUIRED, CONTRACT_VIOLATED, PAYLOAD_INVALID, FieldError, Refusal
from app.primitives.jobs.model import Flow, NewJob, derived
from app.primitives.jobs.model.terms import Known, Pair, Terms
from app.primitives.jobs.ops import flows, terms
from app.primitives.jobs.store import terms as store

ALLOW, WARN, REFUSE = "allow", "warn", "refuse"


@dataclass(slots=True)
class Admission:
    """One transaction's judge. What the policy lets pass with a warning is told to the metrics once committed."""

    tx: Tx
    known: dict[Pair, Known]
    policies: dict[str, str]
    _counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    _keyless: dict[bytes, Refusal] = field(default_factory=dict)

    @classmethod
    def of(cls, tx: Tx, wanted: Collection[Flow]) -> Admission:
        """Read what contracts promise of these flows' types (one statement), and the policies of their queues: from
        memory, which follows other replicas within three seconds, and from the database for a queue new to this process.
        """
        return cls(tx, terms.known(tx, {flow[1:] for flow in wanted}), _policies(tx, {flow[0] for flow in wanted}))

    def terms(self, flow: Flow) -> Terms | None:
        one = self.known.get(flow[1:])
        return None if one is None else one.terms

    def keyed(self, new: NewJob) -> NewJob:
        """The job with the keys that its contract takes from the payload; as it was if it lacks them, which `refusal` tells."""
        one = self.known.get(new.flow[1:])
        if one is None or not derived.wanted(one.terms, new):
            return new
        try:
            return derived.keyed(one.terms, new)
        except derived.NoKey as fault:
            self._keyless[new.id] = Refusal(
                PAYLOAD_INVALID, "The contract of this type takes a key from the payload.", errors=(fault.error,)
            )
            return new

    def refusal(self, new: NewJob) -> Refusal | None:
        """Why this job must not come in: its contract, where the queue's policy refuses; whatever the policy, more attempts
        than its effects bear, and its payload.
        """
        fault = self._fault(new.flow) if self.policies[new.flow[0]] == REFUSE else None
        if fault is not None:
            return fault
        one = self.known.get(new.flow[1:])
        if one is not None and (harmful := _harmful(one.terms, new)) is not None:
            return harmful
        faults = one.schema.faults(new.payload) if one is not None and one.schema is not None else ()
        if not faults:
            return self._keyless.get(new.id)
        return Refusal(PAYLOAD_INVALID, "The payload does not fit the schema of its type's contract.", errors=faults)

    def warning(self, flow: Flow) -> Refusal | None:
        """What a stricter policy would refuse this job for, where the queue's policy warns."""
        return self._fault(flow) if self.policies[flow[0]] == WARN else None

    def count(self, flow: Flow, warning: Refusal | None) -> None:
        """A new job came in with this warning."""
        if warning is None:
            return
        if not self._counted:
            memory, counted = flows.here(self.tx), self._counted
            self.tx.on_commit(lambda: memory.warned(counted))
        self._counted[flow[0], warning.code.name] += 1

    def _fault(self, flow: Flow) -> Refusal | None:
        promised = self.terms(flow)
        if promised is None:
            return Refusal(CONTRACT_REQUIRED, "No contract is registered for this type and version.")
        broken = promised.broken(self.tx.now)
        if not broken:
            return None
        return Refusal(
            CONTRACT_VIOLATED, "The contract of this type and version breaks rules.", extra={"rules": list(broken)}
        )


def _harmful(promised: Terms, new: NewJob) -> Refusal | None:
    """A job may ask for other values than its contract's; but not for attempts that its contract says do harm."""
    if promised.at_most is None or new.max_attempts is None or new.max_attempts <= promised.at_most:
        return None
    wanted = f"must not be above {promised.at_most}: the contract says that its effects are not to be repeated"
    return Refusal(
        CONTRACT_VIOLATED, "This job asks for more than its contract allows.",
        extra={"rules": ["QUEUE006"]}, errors=(FieldError("#/max_attempts", wanted),),
    )  # fmt: skip


def _policies(tx: Tx, queues: Collection[str]) -> dict[str, str]:
    memory, default = flows.here(tx), tx.host.settings.contract_policy
    new = sorted(queue for queue in queues if not memory.knows_queue(queue))
    fresh = {row.name: row.contract_policy for row in store.select_policies(tx, new)} if new else {}
    return {queue: (fresh[queue] if queue in fresh else memory.contract_policy(queue)) or default for queue in queues}
