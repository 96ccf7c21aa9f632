"""What contracts bring to a process: lanes, and the pages of the rules."""

from __future__ import annotations

from app.errors import CONTRACT_VIOLATED, Code
from app.primitives.contracts.model.rules import LAWS
from app.primitives.contracts.ops import contracts
from app.primitives.contracts.ops.drift import drift
from app.primitives.contracts.routes import router
from app.runtime.lanes import LaneSpec
from app.runtime.primitive import Primitive

LANES = (
    LaneSpec("contracts.put", contracts.put, "control"),
    LaneSpec("contracts.get", contracts.get, "read", reads=True),
    LaneSpec("contracts.list", contracts.list_contracts, "read", reads=True),
    LaneSpec("contracts.check", contracts.check, "read", reads=True),
    LaneSpec("contracts.drift", drift, "read", reads=True),
)

PAGES = {
    Code(law.rule, CONTRACT_VIOLATED.status, law.title, retryable=False, advice=f"{law.why} {law.mend}"): law.example
    for law in LAWS.values()
}

CONTRACTS = Primitive("contracts", router, lanes=LANES, pages=PAGES)
