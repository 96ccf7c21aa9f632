"""Routes of contracts: register, read, judge, compare with practice; and the JSON Schema of manifests."""

from __future__ import annotations

from functools import cache

import msgspec

from app.access import Role
from app.errors import NOT_FOUND, VALIDATION_FAILED
from app.http.call import Answer, Call
from app.http.paging import PageParams, page, place
from app.http.routing import OPEN, thin_router
from app.jsontext import Name
from app.primitives.audit.model import new_id
from app.primitives.contracts.model.contract import VersionText
from app.primitives.contracts.model.manifest import Ledger
from app.primitives.contracts.model.schema import manifest_schema
from app.primitives.contracts.model.telling import check_view
from app.primitives.contracts.ops.contracts import Check, Get, Listing, Put
from app.primitives.contracts.ops.drift import HOUR_MICROS, Look
from app.primitives.contracts.schemas import (
    CheckContracts,
    ContractCheckRead,
    ContractListRead,
    ContractPutRead,
    ContractRead,
    DriftParams,
    DriftReportRead,
    ManifestSchemaRead,
    PutContract,
    contract_view,
    drift_view,
)

router = thin_router(tags=["contracts"])

CONTRACT = {"type": Name, "schema_version": VersionText}
SHORTLY = {"cache-control": "public, max-age=300"}


@router.put(
    "/v1/contracts/{type}/{schema_version}",
    name="put_contract",
    requires=Role.OPERATOR,
    answers=ContractPutRead,
    path=CONTRACT,
    response_description="The contract: replaced, or unchanged (`replayed: true`).",
    also={201: "The contract, which is new."},
)
async def put_contract(call: Call[PutContract]) -> Answer:
    """Register what a job type promises.

    A contract that breaks rules is stored too, and answered with `valid: false` and its violations: the enqueue policy
    decides what becomes of its jobs. What is malformed is refused, and so are reasons that give none. May be repeated. A key
    that is limited to names may only write types within them, and handlers that write within them.
    """
    type_, version, body = call.path["type"], int(call.path["schema_version"]), call.body
    handler = body.terminal_handler
    call.principal.require_names([type_] if handler is None else [type_, handler.place])
    command = Put(type_, version, body, call.principal, call.request_id, new_id(), new_id())
    stored = await call.runtime.lane("contracts.put").submit(command)
    return Answer({**contract_view(stored), "replayed": stored.replayed}, status=201 if stored.created else 200)


@router.get(
    "/v1/contracts/{type}/{schema_version}",
    name="get_contract",
    requires=Role.VIEWER,
    answers=ContractRead,
    path=CONTRACT,
    refuses=(NOT_FOUND, VALIDATION_FAILED),
    response_description="The contract.",
)
async def get_contract(call: Call) -> Answer:
    """Get one contract, with what the rules say of it now."""
    command = Get(call.path["type"], int(call.path["schema_version"]), call.principal)
    return Answer(contract_view(await call.runtime.lane("contracts.get").submit(command)))


@router.get(
    "/v1/contracts",
    name="list_contracts",
    requires=Role.VIEWER,
    answers=ContractListRead,
    response_description="A page of contracts.",
)
async def list_contracts(call: Call[None, PageParams]) -> Answer:
    """List contracts by type and version, each with what the rules say of it now.

    A key that is limited to names sees only types within them.
    """
    after = place(call, "contracts", (str, int))
    listing = Listing(call.principal, call.query.limit, None if after is None else (after[0], after[1]))
    rows = await call.runtime.lane("contracts.list").submit(listing)
    return Answer(page(call, "contracts", rows, contract_view, lambda one: (one.type, one.schema_version)))


@router.post(
    "/v1/contracts/check",
    name="check_contracts",
    requires=(Role.VIEWER, Role.PRODUCER),
    answers=ContractCheckRead,
    response_description="The judgement.",
)
async def check_contracts(call: Call[CheckContracts]) -> Answer:
    """Judge a manifest, and store nothing.

    What `tenure contracts check` does, by this installation's settings. Violations that `baseline` lists are `known`;
    listed ones that are violated no more are `paid`. A reason that gives none is a finding here.
    """
    body = call.body
    found = await call.runtime.lane("contracts.check").submit(Check(body.manifest, body.baseline or Ledger(version=1)))
    return Answer(check_view(found, strict=body.strict))


@router.get(
    "/v1/contracts/drift",
    name="get_contract_drift",
    requires=Role.VIEWER,
    answers=DriftReportRead,
    response_description="What differs.",
)
async def get_contract_drift(call: Call[None, DriftParams]) -> Answer:
    """Compare what contracts promise with what was seen.

    Each finding has its figures: the timeout against the 99th percentile of successful durations, attempts that ran on beside
    a later one against the promised effects, dead work without a terminal handler or without any contract, lost leases per
    run against their budget. A key that is limited to names sees only types within them.
    """
    look = Look(call.principal, call.query.window_hours * HOUR_MICROS)
    return Answer(drift_view(await call.runtime.lane("contracts.drift").submit(look)))


@router.get(
    "/contracts.schema.json",
    name="get_contract_schema",
    requires=OPEN,
    answers=ManifestSchemaRead,
    media_type="application/schema+json",
    response_description="The JSON Schema.",
)
async def get_contract_schema(_call: Call) -> Answer:
    """Get the JSON Schema of manifests, for editors.

    The same as `tenure contracts schema` prints.
    """
    return Answer(_schema(), headers=SHORTLY, media_type="application/schema+json")


@cache
def _schema() -> bytes:
    return msgspec.json.encode(manifest_schema())
