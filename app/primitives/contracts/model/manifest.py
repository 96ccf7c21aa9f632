"""Manifests: the contracts of a repository, and the ledger of what they owe."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from app.jsontext import Body, Name, wrong
from app.primitives.contracts.model.contract import Contract, Day, Justification, Version

MOST_CONTRACTS = 1000
MOST_DEBT = 10_000
DEFAULT_FILE = "manifest"

FilePath = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=500)]
FindingId = Annotated[
    str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+::[A-Za-z0-9._:-]+@([0-9]+|\*)::QUEUE[0-9]{3}$", max_length=700)
]


class Declared(Contract):
    """A contract in a manifest, with the type and version that it is of."""

    type: Name = Field(description="The job type.", examples=["invoice.send"])
    schema_version: Version = Field(1, description="Version of the payload's shape.", examples=[1])
    file: FilePath | None = Field(
        None, description="Where it was declared; begins the ids of its findings. Not within a file.", examples=[None]
    )

    @property
    def place(self) -> str:
        return self.file or DEFAULT_FILE


class Excluded(Body):
    """A type whose reliability another channel owns, such as mail."""

    type: Name = Field(examples=["mail.send"])
    reason: Justification = Field(
        description="Which channel, and how it makes sure.",
        examples=["The mail gateway queues, retries and reports bounces by itself."],
    )
    file: FilePath | None = Field(None, description="As for contracts.", examples=[None])

    @property
    def place(self) -> str:
        return self.file or DEFAULT_FILE


class Manifest(Body):
    """The contracts of a repository."""

    schema_: str | None = Field(None, alias="$schema", description="For editors; not read.", examples=[None])
    contracts: Annotated[list[Declared], Field(max_length=MOST_CONTRACTS)] = Field(
        default_factory=list, description="One for each type and version."
    )
    excluded: Annotated[list[Excluded], Field(max_length=MOST_CONTRACTS)] = Field(
        default_factory=list, description="Types that are left to another channel.", examples=[[]]
    )

    @model_validator(mode="after")
    def _each_type_once(self) -> Self:
        if len({(one.type, one.schema_version) for one in self.contracts}) < len(self.contracts):
            raise wrong("declares a type and version twice")
        names = {one.type for one in self.excluded}
        if len(names) < len(self.excluded):
            raise wrong("excludes a type twice")
        if any(one.type in names for one in self.contracts):
            raise wrong("excludes a type that it declares a contract for")
        return self


class Debt(Body):
    """A violation that is known and accepted for the time being."""

    id: FindingId = Field(
        description="`<file>::<type>@<version>::<rule>`", examples=["app/contracts.yaml::mail.send@1::QUEUE003"]
    )
    since: Day = Field(description="When it was accepted.", examples=["2026-12-01"])
    reason: Justification = Field(
        description="Why it was.", examples=["It was there when the standard came; the handler is planned for spring."]
    )


class Ledger(Body):
    """The baseline: known debt. It may shrink; it grows only for a reason."""

    version: Literal[1] = Field(1, description="Of this format.")
    debt: Annotated[list[Debt], Field(max_length=MOST_DEBT)] = Field(
        default_factory=list, description="Sorted by id.", examples=[[]]
    )

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len({one.id for one in self.debt}) < len(self.debt):
            raise wrong("lists an id twice")
        return self
