"""The contract as it is declared: one shape for requests, for manifest files and for what is stored.

Quick to import, because the command line judges manifests without a server: nothing of HTTP or SQL may come in here.
Whether a contract keeps the rules is not asked here (`rules`); here it only has to be well formed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Self

import msgspec
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from app.errors import FieldError
from app.jsontext import Body, Name, Note, OpaqueJson, wrong
from app.primitives.contracts.model.reasons import why_not

MOST_VERSION = 2_147_483_647
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,10}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Rule(StrEnum):
    """The rules by their stable names; `rules` holds what each demands."""

    QUEUE001 = "QUEUE001"
    QUEUE002 = "QUEUE002"
    QUEUE003 = "QUEUE003"
    QUEUE004 = "QUEUE004"
    QUEUE005 = "QUEUE005"
    QUEUE006 = "QUEUE006"
    QUEUE007 = "QUEUE007"


class Trigger(StrEnum):
    """What enqueues the work: a deliberate call, or an event that may come many times for one thing."""

    DIRECT = "direct"
    EVENT = "event"


class Effects(StrEnum):
    """What running the work twice does to the world."""

    NONE = "none"
    IDEMPOTENT = "idempotent"
    KEYED = "keyed"
    SPLIT = "split"
    EVENT_REPLAY = "event_replay"
    NON_IDEMPOTENT = "non_idempotent"


class OnLeaseLoss(StrEnum):
    RETRY = "retry"
    UNKNOWN = "unknown"


def _plain(value: str) -> str:
    if _CONTROL.search(value):
        raise wrong("must not hold control characters")
    return value


def _day(value: Any) -> date:
    if isinstance(value, date):
        return value
    if not isinstance(value, str) or not _DAY.fullmatch(value):
        raise wrong("must be a date like 2026-12-31")
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise wrong("is not a date that exists") from None


def _digits(value: Any) -> Any:
    if isinstance(value, str):
        if not _DIGITS.fullmatch(value):
            raise wrong("must be an integer")
        return int(value)
    return value


def _escalating(pauses: list[float]) -> list[float]:
    if any(later < earlier for earlier, later in pairwise(pauses)):
        raise wrong("must not decrease: each pause is at least as long as the one before")
    return pauses


Version = Annotated[int, Field(ge=1, le=MOST_VERSION)]
VersionText = Annotated[int, Field(ge=1, le=MOST_VERSION), BeforeValidator(_digits)]
Justification = Annotated[str, StringConstraints(max_length=500), AfterValidator(_plain)]
Day = Annotated[
    date,
    PlainValidator(_day),
    PlainSerializer(date.isoformat, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date"}),
]
Span = Annotated[float, Field(gt=0, le=31_536_000)]
PointerText = Annotated[str, StringConstraints(pattern=r"^(/([^~/\x00-\x1f]|~[01])*)+$", max_length=255)]


def _one_of(model: Body, names: tuple[str, ...], *, least: int) -> None:
    given = [name for name in names if getattr(model, name) is not None]
    listed = ", ".join(f"`{name}`" for name in names)
    if len(given) > 1:
        raise wrong(f"takes one of {listed}, not several")
    if len(given) < least:
        raise wrong(f"needs one of {listed}")


class Retry(Body):
    """The retry budget: one of a number of attempts, a deadline, or no limit for a stated reason."""

    max_attempts: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="So many attempts at most, the first included.", examples=[5]
    )
    retry_until_seconds: Span | None = Field(
        None, description="Attempts begin until so long after the enqueue, however many they are.", examples=[None]
    )
    unlimited_reason: Justification | None = Field(
        None, description="Attempts without limit, and why that is right.", examples=[None]
    )
    max_exceptions: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="Dead after so many failures that the worker itself reported.", examples=[None]
    )

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        _one_of(self, ("max_attempts", "retry_until_seconds", "unlimited_reason"), least=0)
        return self


class HandlerJob(Body):
    """The job that is enqueued when the work is dead."""

    queue: Name = Field(examples=["billing"])
    type: Name = Field(examples=["invoice.failed"])
    schema_version: Version = Field(1, examples=[1])


class HandlerMessage(Body):
    """The message that is recorded in the outbox when the work is dead."""

    destination: Name = Field(examples=["support"])
    type: Name = Field(examples=["invoice.failed"])


class TerminalHandler(Body):
    """What happens, once and in the same transaction, when the work is dead: one of the two."""

    enqueue: HandlerJob | None = Field(None, description="Enqueue this job.")
    outbox: HandlerMessage | None = Field(None, description="Record this message.", examples=[None])

    @model_validator(mode="after")
    def _one_handler(self) -> Self:
        _one_of(self, ("enqueue", "outbox"), least=1)
        return self

    @property
    def place(self) -> str:
        """The queue or destination that it writes to."""
        if self.enqueue is not None:
            return self.enqueue.queue
        assert self.outbox is not None, "one of the two, as validated"
        return self.outbox.destination


class Dedup(Body):
    """How many events for one thing become one run: one of the three."""

    unique_by: PointerText | None = Field(
        None,
        description="JSON Pointer into the payload: one job that waits for each string or integer found there. An event that "
        "comes during its run makes the next one, so that no change is missed. An enqueue's own `unique` or `debounce` stands.",
        examples=["/site_id"],
    )
    no_overlap_by: PointerText | None = Field(
        None,
        description="JSON Pointer into the payload: one run at a time for each string or integer found there; the others wait in "
        "line. An enqueue's own `concurrency` stands.",
        examples=[None],
    )
    upstream_debounce_reason: Justification | None = Field(
        None, description="The producer gathers events before it enqueues; say where and how.", examples=[None]
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        _one_of(self, ("unique_by", "no_overlap_by", "upstream_debounce_reason"), least=1)
        return self


class Exemption(Body):
    """Why a rule does not hold here. It is always reported; once it has expired the rule counts as violated."""

    rule: Rule = Field(examples=["QUEUE001"])
    reason: Justification = Field(
        description="A real constraint, in several words.",
        examples=["The bank's interface knows no idempotency key; an operator repeats a transfer by hand."],
    )
    expires_on: Day | None = Field(
        None, description="Its last day, in UTC; left out: it does not end.", examples=["2027-06-30"]
    )


class Contract(Body):
    """What a job type promises. What is left out is not promised; where a value is needed the service's settings count."""

    description: Note = Field("", description="For people.", examples=["Sends one invoice to the provider."])
    retry: Retry | None = Field(None, description="The retry budget.")
    backoff_seconds: (
        Annotated[
            list[Annotated[float, Field(ge=0, le=2_592_000)]],
            Field(min_length=1, max_length=32),
            AfterValidator(_escalating),
        ]
        | None
    ) = Field(
        None,
        description="Pauses between attempts, escalating; the last repeats, up to a fifth of jitter is added.",
        examples=[[10, 60, 300, 900]],
    )
    terminal_handler: TerminalHandler | None = Field(None, description="Who takes care of work that is dead.")
    trigger: Trigger = Field(Trigger.DIRECT, description="`event`: one change may enqueue it many times.")
    dedup: Dedup | None = Field(None, description="How many events become one run.")
    external_calls: bool = Field(False, description="Whether it waits for something outside this installation.")
    timeout_seconds: Annotated[float, Field(ge=1, le=604_800)] | None = Field(
        None, description="Ceiling of one attempt, counted from its claim.", examples=[45]
    )
    lease_seconds: Annotated[float, Field(ge=5, le=3600)] | None = Field(
        None, description="The lease that its workers ask for.", examples=[60]
    )
    heartbeat_seconds: Annotated[float, Field(gt=0, le=3600)] | None = Field(
        None, description="Its workers renew the lease so often.", examples=[15]
    )
    effects: Effects | None = Field(
        None, description="What running it twice does to the world.", examples=["idempotent"]
    )
    on_lease_loss: OnLeaseLoss | None = Field(
        None, description="What becomes of an abandoned attempt.", examples=["retry"]
    )
    max_lease_losses: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="Dead after so many lost leases.", examples=[3]
    )
    payload_schema: OpaqueJson | None = Field(
        None, description="JSON Schema (2020-12) of the payload, enforced at enqueue.", examples=[{"type": "object"}]
    )
    exemptions: Annotated[list[Exemption], Field(max_length=len(Rule))] = Field(
        default_factory=list, description="Rules that do not hold here, each with its reason.", examples=[[]]
    )

    @field_validator("payload_schema")
    @classmethod
    def _schema_or_none(cls, value: bytes | None) -> bytes | None:
        return None if value == b"null" else value

    @field_validator("exemptions")
    @classmethod
    def _each_rule_once(cls, value: list[Exemption]) -> list[Exemption]:
        if len({one.rule for one in value}) < len(value):
            raise wrong("names a rule twice")
        return value

    def document(self) -> bytes:
        """Everything that was said, as JSON; the payload schema byte for byte."""
        said = self.model_dump(exclude_unset=True, exclude_none=True)
        for name in ("type", "schema_version", "file"):  # a manifest's entry has them beside the contract
            said.pop(name, None)
        if self.payload_schema is not None:
            said["payload_schema"] = msgspec.Raw(self.payload_schema)
        return msgspec.json.encode(said)

    def poor_reasons(self) -> Iterator[FieldError]:
        """Every reason in it that gives none, with what is missing; pointers from the contract's own root."""
        if self.retry is not None and self.retry.unlimited_reason is not None:
            yield from _poor("#/retry/unlimited_reason", self.retry.unlimited_reason)
        if self.dedup is not None and self.dedup.upstream_debounce_reason is not None:
            yield from _poor("#/dedup/upstream_debounce_reason", self.dedup.upstream_debounce_reason)
        for index, exemption in enumerate(self.exemptions):
            yield from _poor(f"#/exemptions/{index}/reason", exemption.reason)


def _poor(pointer: str, reason: str) -> Iterator[FieldError]:
    if (fault := why_not(reason)) is not None:
        yield FieldError(pointer, fault)
