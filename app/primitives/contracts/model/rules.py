"""The rules of the reliability standard: each a small function, with why it is one and how to mend what breaks it.

A rule sees the contract and the values in effect, and gives what is wrong: a pointer into the contract and one sentence.
Nothing given means that the rule holds. The texts beside the functions fill the pages `/problems/QUEUE…`, the findings and
the documentation; they are written nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.primitives.contracts.model.contract import Contract, Effects, OnLeaseLoss, Rule, Trigger
from app.primitives.contracts.model.effective import Defaults, InEffect
from app.primitives.contracts.model.reasons import why_not

BEATS_PER_LEASE = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """What breaks a rule, and where: `pointer` is a JSON Pointer into the contract."""

    pointer: str
    detail: str


@dataclass(frozen=True, slots=True)
class Case:
    """What a rule judges."""

    type: str
    contract: Contract
    effect: InEffect
    retention: float  # seconds that an ended job, its idempotency key and its events are kept


Judge = Callable[[Case], Iterator[Fault]]


@dataclass(frozen=True, slots=True)
class Law:
    """A rule with its texts. `example` is the part of a contract that keeps it."""

    rule: Rule
    title: str
    why: str
    mend: str
    example: Mapping[str, Any]
    judge: Judge


LAWS: dict[Rule, Law] = {}


def _law(rule: Rule, title: str, *, why: str, mend: str, example: Mapping[str, Any]) -> Callable[[Judge], Judge]:
    def enter(judge: Judge) -> Judge:
        LAWS[rule] = Law(rule, title, why, mend, example, judge)
        return judge

    return enter


def case_of(type_: str, contract: Contract, defaults: Defaults) -> Case:
    return Case(type_, contract, InEffect.of(contract, defaults), defaults.retention)


@_law(
    Rule.QUEUE001,
    "No retry budget is declared",
    why="Work that declares nothing lives by whatever the service happens to be set to, and one attempt means that a single "
    "restart or a moment without network loses it for good.",
    mend="Declare in `retry` one of `max_attempts` (2 or more), `retry_until_seconds`, or `unlimited_reason` with the reason. "
    "If one attempt is right, say `max_attempts: 1` and exempt the type from this rule with the constraint that demands it.",
    example={"retry": {"max_attempts": 5}},
)
def _budget(case: Case) -> Iterator[Fault]:
    retry = case.contract.retry
    if retry is None:
        yield Fault("/retry", "no retry budget is declared")
    elif retry.max_attempts == 1:
        yield Fault("/retry/max_attempts", "a single attempt is allowed, and no exemption says why")
    elif retry.unlimited_reason is not None:
        if why_not(retry.unlimited_reason) is not None:
            yield Fault("/retry/unlimited_reason", "attempts are unlimited, and the reason given is none")
    elif retry.max_attempts is None and retry.retry_until_seconds is None:
        yield Fault("/retry", "no budget is declared in `retry`")


@_law(
    Rule.QUEUE002,
    "Attempts are repeated without a pause",
    why="Repeating at once turns one failing dependency into an attack on it, and spends the whole budget within the same "
    "outage.",
    mend="Declare `backoff_seconds` as an escalating list that outlasts a usual outage, or a deadline in "
    "`retry.retry_until_seconds`.",
    example={"retry": {"max_attempts": 5}, "backoff_seconds": [10, 60, 300, 900]},
)
def _pauses(case: Case) -> Iterator[Fault]:
    if not case.effect.repeats or case.effect.deadline is not None:
        return
    pauses = case.contract.backoff_seconds
    if pauses is None:
        yield Fault("/backoff_seconds", "more than one attempt is made, and no pause between them is declared")
    elif pauses[-1] == 0:
        yield Fault("/backoff_seconds", "every pause is zero")


@_law(
    Rule.QUEUE003,
    "Nobody takes care of work that is dead",
    why="When the budget is spent, somebody still waits: a record looks busy for ever, a customer hears nothing. A row in a "
    "table of dead jobs tells nobody.",
    mend="Name in `terminal_handler` the job to enqueue or the message to record when the work is dead: it marks the record, "
    "frees what is held, and tells whoever waits. It must be another type, and safe to run if no attempt ever began.",
    example={
        "terminal_handler": {"enqueue": {"queue": "billing", "type": "invoice.failed", "schema_version": 1}},
    },
)
def _end(case: Case) -> Iterator[Fault]:
    handler = case.contract.terminal_handler
    if handler is None:
        yield Fault("/terminal_handler", "no terminal handler is declared")
    elif handler.enqueue is not None and handler.enqueue.type == case.type:
        yield Fault("/terminal_handler/enqueue/type", "its terminal handler is its own type, which is one more attempt")


@_law(
    Rule.QUEUE004,
    "Events are not gathered",
    why="An event fires once for each thing that was saved: two hundred saved pages enqueue two hundred jobs that all do the "
    "same work on one site.",
    mend="Declare in `dedup` one of `unique_by` or `no_overlap_by`, a pointer into the payload to the smallest thing that is "
    "truly distinct (often the site, not the page), or `upstream_debounce_reason`: where and how the producer gathers.",
    example={"trigger": "event", "dedup": {"unique_by": "/site_id"}},
)
def _gathering(case: Case) -> Iterator[Fault]:
    contract = case.contract
    if contract.trigger is not Trigger.EVENT:
        return
    if contract.dedup is None:
        yield Fault("/dedup", "events enqueue it, and nothing makes many of them one")
    elif contract.dedup.upstream_debounce_reason is not None and why_not(contract.dedup.upstream_debounce_reason):
        yield Fault("/dedup/upstream_debounce_reason", "the producer is said to gather, and the reason given is none")


@_law(
    Rule.QUEUE005,
    "A call to the outside is not bounded",
    why="A connection that hangs holds its worker until somebody kills it, and a few of them stop the whole queue. A timeout "
    "that is longer than the lease lets a second worker begin while the first one still waits.",
    mend="Declare `timeout_seconds` below `lease_seconds` (60, if no lease is declared), and bound the call itself below that.",
    example={"external_calls": True, "timeout_seconds": 45, "lease_seconds": 60},
)
def _bounds(case: Case) -> Iterator[Fault]:
    contract, lease = case.contract, case.effect.lease
    if not contract.external_calls:
        return
    if contract.timeout_seconds is None:
        yield Fault("/timeout_seconds", "it calls the outside, and no timeout is declared")
    elif contract.timeout_seconds >= lease:
        yield Fault("/timeout_seconds", f"the timeout of {_span(contract.timeout_seconds)} is not below {_lease(case)}")


@_law(
    Rule.QUEUE006,
    "What must not happen twice may be repeated",
    why="A second run charges, sends or creates a second time. After a lost lease nobody knows whether the first run did it.",
    mend="Make the effect repeatable and say how in `effects`: `keyed` (the provider takes an idempotency key), `split` (the "
    "effect is a step that records itself) or `event_replay` (only the processing of a stored event is repeated). Else allow "
    "one attempt, exempt the type from QUEUE001 with that constraint, and declare `on_lease_loss: unknown`.",
    example={
        "effects": "non_idempotent",
        "retry": {"max_attempts": 1},
        "on_lease_loss": "unknown",
        "exemptions": [
            {
                "rule": "QUEUE001",
                "reason": "A second attempt would issue a second transfer; an operator repeats it by hand.",
            }
        ],
    },
)
def _once(case: Case) -> Iterator[Fault]:
    if case.contract.effects is not Effects.NON_IDEMPOTENT:
        return
    if case.effect.repeats:
        yield Fault("/retry", "its effects must not happen twice, and more than one attempt is allowed")
    if case.effect.on_lease_loss is OnLeaseLoss.RETRY:
        yield Fault("/on_lease_loss", "its effects must not happen twice, and a lost lease is answered by another run")


@_law(
    Rule.QUEUE007,
    "The chain of times does not hold",
    why="Each time protects the next: a heartbeat that comes too rarely loses the lease to one lost packet, an attempt that may "
    "outlast its lease is run twice, and retries that outlast the retention meet forgotten keys and events.",
    mend="Keep three heartbeats within the lease; keep `timeout_seconds` below the lease, or declare `heartbeat_seconds`; keep "
    "all pauses and attempts together below the retention of ended jobs (`TENURE_JOBS_RETENTION_SECONDS`).",
    example={"timeout_seconds": 600, "lease_seconds": 60, "heartbeat_seconds": 15},
)
def _chain(case: Case) -> Iterator[Fault]:
    contract, effect = case.contract, case.effect
    beat = contract.heartbeat_seconds
    if beat is not None and BEATS_PER_LEASE * beat > effect.lease:
        yield Fault("/heartbeat_seconds", f"three heartbeats of {_span(beat)} do not fit into {_lease(case)}")
    # a contract that says nothing of time promises nothing of it; calls to others must (QUEUE005)
    if contract.timeout_seconds is not None and beat is None and effect.timeout >= effect.lease:
        yield Fault(
            "/timeout_seconds",
            f"the timeout of {_span(effect.timeout)} is not below {_lease(case)}, and no heartbeat is declared",
        )
    horizon = effect.horizon()
    if horizon is not None and horizon >= case.retention:
        yield Fault(
            "/retry",
            f"retries may last {_span(horizon)}, and ended jobs, their keys and events are kept {_span(case.retention)}",
        )


def _lease(case: Case) -> str:
    own = "the lease" if case.contract.lease_seconds is not None else "the usual lease"
    return f"{own} of {_span(case.effect.lease)}"


def _span(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 1_000_000 else f"{seconds:.0f} s"
