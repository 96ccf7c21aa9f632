"""What producers and workers ask, and what they are answered. Durations and moments are microseconds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from app.access import Caller
from app.errors import Refusal
from app.primitives.outbox.model.records import Message
from app.primitives.outbox.model.states import Decision, Flow, Outcome, ReleaseReason, State
from app.record import record


@record
class Prepare:
    """A message that is held back until its producer has decided; past `decide_within` it is asked at `check_url`."""

    decide_within: int
    check_url: str | None = None


@record
class NewMessage:
    """An intent as recorded. `fingerprint` is over all of it but the key."""

    id: bytes
    message_key: str
    key_digest: bytes
    fingerprint: bytes
    flow: Flow
    schema_version: int
    payload: bytes
    occurred_at: int | None = None
    available_at: int | None = None
    ordering_key: str | None = None
    correlation_id: str | None = None
    target_reference: str | None = None
    max_attempts: int | None = None
    prepare: Prepare | None = None


@record
class Record:
    """One request's messages. Outcome: one `Recorded` or `Refusal` for each, in order."""

    messages: tuple[NewMessage, ...]
    caller: Caller


@record
class Recorded:
    message: Message
    replayed: bool = False


@record
class Decide:
    """What a producer, or an operator, says of a prepared message."""

    id: bytes
    decision: Decision
    caller: Caller
    audit_id: bytes


@record
class Decided:
    message: Message
    replayed: bool = False


@record
class Claim:
    """A request for messages. `types` empty: any. `by_service`: the service claims what it delivers itself."""

    destinations: tuple[str, ...]
    types: tuple[str, ...]
    worker: str
    limit: int
    lease: int | None
    caller: Caller
    claim_id: str | None = None
    by_service: bool = False

    @property
    def places(self) -> Sequence[Hashable]:
        return self.destinations

    @property
    def identity(self) -> Hashable | None:
        return None if self.claim_id is None else (self.caller.principal.key_id, self.claim_id)

    def wants(self, flow: Flow) -> bool:
        destination, type_ = flow
        return destination in self.destinations and self.handles(type_)

    def handles(self, type_: str) -> bool:
        return not self.types or type_ in self.types


@record
class Granted:
    """One message in a holder's hands."""

    id: bytes
    flow: Flow
    message_key: str
    schema_version: int
    payload: bytes
    occurred_at: int
    ordering_key: str | None
    correlation_id: str | None
    target_reference: str | None
    traceparent: str | None
    attempt: int
    max_attempts: int
    token: str
    fence: int
    expires_at: int


@record
class Claimed:
    """What one claim was given. `replayed`: an earlier claim with this id was given it, and still holds it."""

    grants: tuple[Granted, ...] = ()
    replayed: bool = False


@record
class Settlement:
    """How one holding ended; `digest` is over its content."""

    id: bytes
    token: str
    outcome: Outcome
    digest: bytes
    reference: str | None = None
    category: str | None = None
    message: str | None = None
    delay: int | None = None
    reason: ReleaseReason | None = None
    again_if_idempotent: bool = False  # a doubt of the service's own delivery


@record
class Settle:
    """One request's settlements. Outcome: one `Settled` or `Refusal` for each, in order."""

    items: tuple[Settlement, ...]
    caller: Caller


@record
class Settled:
    id: bytes
    state: State
    attempt: int
    available_at: int | None = None
    replayed: bool = False


@record
class Beat:
    """A sign of life. `lease` None: as long as the claim asked for."""

    id: bytes
    token: str
    lease: int | None = None


@record
class Renew:
    beats: tuple[Beat, ...]
    caller: Caller


@record
class Renewed:
    id: bytes
    expires_at: int


@record
class Round:
    """A holder's whole round: results of earlier work, then a claim."""

    settle: Settle
    claim: Claim


@record
class Worked:
    settled: tuple[Settled | Refusal, ...]
    claimed: Claimed | Refusal
