"""What operators set of destinations, and how it is told."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from app.clock import to_text
from app.http.paging import PageRead
from app.jsontext import Body, Moment, Name, Read, wrong
from app.outgoing import headers, signatures
from app.primitives.outbox.model import destinations as model
from app.primitives.outbox.model.destinations import LateAck, Mode, OnLeaseLoss, ReconcileMode
from app.primitives.outbox.ops.destinations import Stored
from app.primitives.outbox.schemas.parts import AT, Url, Version

TEN_YEARS_SECONDS = 315_360_000.0
Pause = Annotated[float, Field(ge=0, le=2_592_000)]


class Delivery(Body):
    """Who sends. All fields but `mode` go with `http` alone."""

    mode: Mode = Field(
        description="`pull`: workers claim and send. `http`: the service sends CloudEvents 1.0 by POST.",
        examples=["pull"],
    )
    url: Url | None = Field(
        None,
        description="Where to, for `http`. Loopback, private and link-local addresses only where "
        "`TENURE_DELIVERY_ALLOWED_TARGETS` allows them.",
        examples=[None],
    )
    headers: dict[str, str] | None = Field(
        None,
        description="Sent with every call, such as `authorization`. Their values are stored encrypted and never shown again.",
        examples=[None],
    )
    timeout_seconds: Annotated[float, Field(gt=0, le=300)] | None = Field(
        None, description="Ceiling of one call, to the last byte of the answer. Left out: by the settings (15)."
    )
    signing_secret: Annotated[str, Field(max_length=128)] | None = Field(
        None,
        description="`whsec_` and 24 to 64 bytes in base64: calls are signed with it by Standard Webhooks. Stored encrypted and "
        "never shown again. Left out: as it was.",
        examples=[None],
    )
    signing_secret_overlap_seconds: Annotated[float, Field(ge=0, le=2_592_000)] = Field(
        86_400, description="For how long a secret that is replaced signs too, beside the new one; 0 drops it at once."
    )
    max_in_flight: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="Calls under way at once, in each process. Left out: by the settings (10)."
    )
    max_per_second: Annotated[float, Field(gt=0, le=10_000)] | None = Field(
        None, description="Calls begun in a second, in each process. Left out: as many as there are."
    )

    @model_validator(mode="after")
    def _fits_its_mode(self) -> Self:
        if self.mode is Mode.PULL:
            for name in self.model_fields_set - {"mode", "signing_secret_overlap_seconds"}:
                if getattr(self, name) is not None:
                    raise wrong(f"`{name}` goes with `mode: http` alone")
            return self
        if self.url is None:
            raise wrong("`mode: http` needs a `url`")
        if (fault := headers.problem_with(self.headers or {})) is not None:
            raise wrong(f"`headers` {fault}")
        if self.signing_secret is not None:
            try:
                signatures.parse_secret(self.signing_secret)
            except ValueError as fault:
                raise wrong(f"`signing_secret` {fault}") from None
        return self


class Reconcile(Body):
    """Who finds out what became of a message that is unknown."""

    mode: ReconcileMode = Field(
        description="`manual`: operators, and reconcilers that claim (`/v1/outbox/reconciliations/claim`). `http`: the service "
        "asks `url`. `job`: the service enqueues a job whose result is the verdict. Operators may always decide.",
        examples=["manual"],
    )
    url: Url | None = Field(
        None,
        description="For `http`: gets the message by POST, signed as deliveries are, and answers "
        '`{"verdict": "sent" | "retry" | "dead" | "undecided", "provider_operation_id"?}`.',
        examples=[None],
    )
    queue: Name | None = Field(None, description="For `job` (needed).", examples=[None])
    type: Name | None = Field(None, description="For `job` (needed).", examples=[None])
    schema_version: Version | None = Field(None, description="For `job`. Left out: 1.", examples=[None])

    @model_validator(mode="after")
    def _fits_its_mode(self) -> Self:
        wanted, allowed = _RECONCILE_FIELDS[self.mode]
        for name in ("url", "queue", "type", "schema_version"):
            there = getattr(self, name) is not None
            if there and name not in allowed:
                raise wrong(f"`{name}` does not go with `mode: {self.mode}`")
            if not there and name in wanted:
                raise wrong(f"`mode: {self.mode}` needs `{name}`")
        return self

    def value(self) -> model.Reconcile:
        version = (self.schema_version or 1) if self.mode is ReconcileMode.JOB else None
        return model.Reconcile(self.mode, self.url, self.queue, self.type, version)


_RECONCILE_FIELDS: dict[ReconcileMode, tuple[tuple[str, ...], tuple[str, ...]]] = {
    ReconcileMode.MANUAL: ((), ()),
    ReconcileMode.HTTP: (("url",), ("url",)),
    ReconcileMode.JOB: (("queue", "type"), ("queue", "type", "schema_version")),
}


class PutDestination(Body):
    """How messages get there, and what may be done with those of which it is not known. What is left out is unset."""

    delivery: Delivery = Field(Delivery.model_validate({"mode": Mode.PULL}))
    idempotent: bool = Field(
        False, description="It knows a `message_key` again: sending a message twice has one effect."
    )
    on_lease_loss: OnLeaseLoss = Field(
        OnLeaseLoss.UNKNOWN,
        description="What becomes of a message whose holder is lost. `retry` only for an idempotent destination.",
    )
    late_ack: LateAck = Field(
        LateAck.REFUSE,
        description="Whether a `sent` of a holder whose lease was lost counts; else it is kept as evidence. `accept` only for an "
        "idempotent destination.",
    )
    max_attempts: int | None = Field(
        None, ge=1, le=1000, description="Attempts of a message that names none. Left out: by the settings."
    )
    backoff_seconds: Annotated[list[Pause], Field(min_length=1, max_length=32)] | None = Field(
        None,
        description="Pauses between attempts; the last repeats; jitter is added. Left out: by the settings.",
        examples=[[5, 30, 300]],
    )
    delete_sent: bool = Field(False, description="Sent messages are deleted at once; their keys are kept.")
    retention_seconds: Annotated[float, Field(ge=0, le=TEN_YEARS_SECONDS)] | None = Field(
        None, description="How long ended messages and their keys are kept. Left out: by the settings."
    )
    reconcile: Reconcile = Field(Reconcile.model_validate({"mode": ReconcileMode.MANUAL}))
    reconcile_budget: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="How often it is tried to find out, before an operator must decide. Left out: by the settings (10).",
    )

    @model_validator(mode="after")
    def _repeats_only_where_they_are_safe(self) -> Self:
        if not self.idempotent and self.on_lease_loss is OnLeaseLoss.RETRY:
            raise wrong("`on_lease_loss: retry` needs `idempotent: true`: a lost holder may have sent the message")
        if not self.idempotent and self.late_ack is LateAck.ACCEPT:
            raise wrong("`late_ack: accept` needs `idempotent: true`: somebody else may be sending the message again")
        return self

    def destination(self, name: str) -> model.Destination:
        return model.Destination(
            name=name,
            delivery=model.Delivery(
                mode=self.delivery.mode,
                url=self.delivery.url,
                header_names=tuple(sorted(name.lower() for name in self.delivery.headers or {})),
                timeout_seconds=self.delivery.timeout_seconds,
                max_in_flight=self.delivery.max_in_flight,
                max_per_second=self.delivery.max_per_second,
            ),
            idempotent=self.idempotent,
            on_lease_loss=self.on_lease_loss,
            late_ack=self.late_ack,
            max_attempts=self.max_attempts,
            backoff_seconds=None if self.backoff_seconds is None else tuple(self.backoff_seconds),
            delete_sent=self.delete_sent,
            retention_seconds=self.retention_seconds,
            reconcile=self.reconcile.value(),
            reconcile_budget=self.reconcile_budget,
        )


class DeliveryRead(Read):
    """Who sends. Secrets are not shown."""

    mode: Mode
    url: Annotated[str | None, Field(examples=[None])]
    header_names: Annotated[
        list[str], Field(description="Headers that are sent; their values are secret.", examples=[[]])
    ]
    timeout_seconds: Annotated[float | None, Field(examples=[None])]
    signed: Annotated[bool, Field(description="True if calls are signed.")]
    max_in_flight: Annotated[int | None, Field(examples=[None])]
    max_per_second: Annotated[float | None, Field(examples=[None])]


class ReconcileRead(Read):
    """Who finds out what became of a message that is unknown."""

    mode: ReconcileMode
    url: Annotated[str | None, Field(examples=[None])]
    queue: Annotated[str | None, Field(examples=[None])]
    type: Annotated[str | None, Field(examples=[None])]
    schema_version: Annotated[int | None, Field(examples=[None])]


class DestinationRead(Read):
    """A destination as it is set. Null: by the settings."""

    name: Annotated[Name, Field(examples=["marketplace"])]
    delivery: DeliveryRead
    idempotent: bool
    on_lease_loss: OnLeaseLoss
    late_ack: LateAck
    max_attempts: Annotated[int | None, Field(examples=[None])]
    backoff_seconds: Annotated[list[float] | None, Field(examples=[None])]
    delete_sent: bool
    retention_seconds: Annotated[float | None, Field(examples=[None])]
    reconcile: ReconcileRead
    reconcile_budget: Annotated[int | None, Field(examples=[None])]
    created_at: Annotated[Moment, Field(examples=[AT])]
    updated_at: Annotated[Moment, Field(examples=[AT])]


class DestinationPutRead(DestinationRead):
    """The destination after the call."""

    replayed: bool = Field(description="True if it was set like this before.")


class DestinationListRead(PageRead):
    """A page of destinations."""

    items: list[DestinationRead]


def destination_view(stored: Stored) -> dict[str, Any]:
    one = stored.destination
    return {
        "name": one.name,
        "delivery": {
            "mode": one.delivery.mode.value,
            "url": one.delivery.url,
            "header_names": list(one.delivery.header_names),
            "timeout_seconds": one.delivery.timeout_seconds,
            "signed": stored.signed,
            "max_in_flight": one.delivery.max_in_flight,
            "max_per_second": one.delivery.max_per_second,
        },
        "idempotent": one.idempotent,
        "on_lease_loss": one.on_lease_loss.value,
        "late_ack": one.late_ack.value,
        "max_attempts": one.max_attempts,
        "backoff_seconds": None if one.backoff_seconds is None else list(one.backoff_seconds),
        "delete_sent": one.delete_sent,
        "retention_seconds": one.retention_seconds,
        "reconcile": {
            "mode": one.reconcile.mode.value,
            "url": one.reconcile.url,
            "queue": one.reconcile.queue,
            "type": one.reconcile.type,
            "schema_version": one.reconcile.schema_version,
        },
        "reconcile_budget": one.reconcile_budget,
        "created_at": to_text(stored.created_at),
        "updated_at": to_text(stored.updated_at),
    }
