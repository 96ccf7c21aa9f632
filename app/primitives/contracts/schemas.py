"""What is sent and answered about contracts, and how records become answers."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field, RootModel

from app.clock import seconds, to_text
from app.http.paging import PageRead
from app.jsontext import Body, Moment, Params, Read
from app.primitives.contracts.model.contract import (
    Contract,
    Dedup,
    Effects,
    Exemption,
    OnLeaseLoss,
    Retry,
    Rule,
    TerminalHandler,
    Trigger,
)
from app.primitives.contracts.model.manifest import Ledger, Manifest
from app.primitives.contracts.model.telling import exempted_view, finding_view
from app.primitives.contracts.ops.contracts import Stored
from app.primitives.contracts.ops.drift import DriftReport

_AT = "2026-01-31T08:30:00.000000Z"


class PutContract(Contract):
    """What a job type promises. All of it is set: what is left out is not promised."""


class CheckContracts(Body):
    """A manifest to judge."""

    manifest: Manifest
    baseline: Ledger | None = Field(None, description="Known debt, as the file of `tenure contracts check` holds it.")
    strict: bool = Field(False, description="Whether a paid debt that is still listed fails as well.")


class DriftParams(Params):
    """How far to look back."""

    window_hours: Annotated[int, Field(ge=1, le=24)] = Field(24, description="Figures are kept for 25 hours.")


class FindingRead(Read):
    """A rule that a contract breaks."""

    id: str = Field(description="`<file>::<type>@<version>::<rule>`.", examples=["manifest::invoice.send@1::QUEUE003"])
    rule: Rule = Field(examples=["QUEUE003"])
    file: str | None = Field(description="Only for manifests.", examples=["manifest"])
    type: str = Field(examples=["invoice.send"])
    schema_version: int | None = Field(description="Null for a type that has no contract at all.", examples=[1])
    detail: str = Field(examples=["No terminal handler is declared."])
    mend: str = Field(description="What to do.")
    pointer: str = Field(description="JSON Pointer into the contract.", examples=["/terminal_handler"])
    page: str = Field(description="Explains the rule.", examples=["/problems/QUEUE003"])


class ExemptedRead(FindingRead):
    """A rule that would be broken but for an exemption."""

    reason: str = Field(examples=["A second attempt would issue a second transfer; an operator repeats it by hand."])
    expires_on: str | None = Field(description="Its last day, in UTC.", examples=["2027-06-30"])


class ContractRead(Read):
    """A contract as it was registered, and what the rules say of it now."""

    type: str = Field(examples=["invoice.send"])
    schema_version: int = Field(examples=[1])
    valid: bool = Field(description="No rule is violated now.", examples=[True])
    violations: list[FindingRead] = Field(examples=[[]])
    exempted: list[ExemptedRead] = Field(description="What exemptions cover now.", examples=[[]])
    valid_until: Moment | None = Field(description="When the first exemption ends that it rests on.", examples=[None])
    description: str = Field(examples=["Sends one invoice to the provider."])
    retry: Retry | None
    backoff_seconds: list[float] | None = Field(examples=[[10, 60, 300, 900]])
    terminal_handler: TerminalHandler | None
    trigger: Trigger = Field(examples=["direct"])
    dedup: Dedup | None = Field(examples=[None])
    external_calls: bool = Field(examples=[True])
    timeout_seconds: float | None = Field(examples=[45])
    lease_seconds: float | None = Field(examples=[60])
    heartbeat_seconds: float | None = Field(examples=[None])
    effects: Effects | None = Field(examples=["keyed"])
    on_lease_loss: OnLeaseLoss | None = Field(examples=["retry"])
    max_lease_losses: int | None = Field(examples=[3])
    payload_schema: Any = Field(
        description="As it was sent, byte for byte; null for none.", examples=[{"type": "object"}]
    )
    exemptions: list[Exemption] = Field(examples=[[]])
    created_at: Moment = Field(examples=[_AT])
    created_by: str = Field(description="Id of the API key, or `anonymous`.", examples=["anonymous"])
    updated_at: Moment = Field(examples=[_AT])
    updated_by: str = Field(examples=["anonymous"])


class ContractPutRead(ContractRead):
    """A contract just registered."""

    replayed: bool = Field(description="True if it stood so before; nothing was changed now.", examples=[False])


class ContractListRead(PageRead):
    """A page of contracts, by type and version."""

    items: list[ContractRead]


class ExcludedRead(Read):
    """A type that is left to another channel."""

    type: str = Field(examples=["mail.send"])
    reason: str = Field(examples=["The mail gateway queues, retries and reports bounces by itself."])
    file: str = Field(examples=["manifest"])


class CountsRead(Read):
    """How many there are of each."""

    contracts: int = Field(examples=[12])
    new: int = Field(examples=[1])
    known: int = Field(examples=[2])
    paid: int = Field(examples=[0])
    exempted: int = Field(examples=[1])
    excluded: int = Field(examples=[1])


class ContractCheckRead(Read):
    """The judgement of a manifest."""

    ok: bool = Field(description="Nothing is new; strictly: and no paid debt is listed.", examples=[False])
    new: list[FindingRead] = Field(description="Violations that are in no baseline.")
    known: list[FindingRead] = Field(description="Violations that the baseline lists.", examples=[[]])
    paid: list[str] = Field(description="Ids in the baseline that are violated no more.", examples=[[]])
    exempted: list[ExemptedRead] = Field(examples=[[]])
    excluded: list[ExcludedRead] = Field(examples=[[]])
    counts: CountsRead


class DriftRead(Read):
    """One way in which promise and practice differ."""

    type: str = Field(examples=["invoice.send"])
    schema_version: int = Field(examples=[1])
    kind: str = Field(
        description="`timeout_near`, `ran_twice`, `dead_unhandled`, `no_contract`, `leases_lost`; new kinds may come.",
        examples=["timeout_near"],
    )
    detail: str = Field(examples=["The slowest hundredth of the successful attempts comes near the timeout."])
    figures: dict[str, float] = Field(
        description="What shows it.", examples=[{"timeout_seconds": 45, "p99_duration_seconds": 43.1, "succeeded": 800}]
    )


class DriftReportRead(Read):
    """Where practice has left the contracts."""

    at: Moment = Field(examples=[_AT])
    window_seconds: float = Field(description="How far back the figures go.", examples=[86400])
    contracts: int = Field(description="How many contracts there are.", examples=[12])
    types: int = Field(description="How many types and versions did anything within the window.", examples=[14])
    items: list[DriftRead] = Field(description="By type and version.")


class ManifestSchemaRead(RootModel[dict[str, Any]]):
    """A JSON Schema (2020-12)."""


def contract_view(stored: Stored) -> dict[str, Any]:
    contract, judgement = stored.contract, stored.judgement
    schema, until = contract.payload_schema, judgement.valid_until
    return {
        "type": stored.type,
        "schema_version": stored.schema_version,
        "valid": judgement.valid,
        "violations": [finding_view(one) for one in judgement.violations],
        "exempted": [exempted_view(one) for one in judgement.exempted],
        "valid_until": None if until is None else to_text(until),
        **contract.model_dump(),
        "payload_schema": None if schema is None else msgspec.Raw(schema),
        "created_at": to_text(stored.created_at),
        "created_by": stored.created_by,
        "updated_at": to_text(stored.updated_at),
        "updated_by": stored.updated_by,
    }


def drift_view(report: DriftReport) -> dict[str, Any]:
    return {
        "at": to_text(report.at),
        "window_seconds": seconds(report.window),
        "contracts": report.contracts,
        "types": report.types,
        "items": [
            {
                "type": one.type,
                "schema_version": one.schema_version,
                "kind": one.drift.kind,
                "detail": one.drift.detail,
                "figures": one.drift.figures,
            }
            for one in report.items
        ],
    }
