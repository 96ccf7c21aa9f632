"""HTTP of the outbox: in and out, no decisions. A file for each kind of call."""

from __future__ import annotations

from fastapi import APIRouter

from app.primitives.outbox.routes.claims import router as claims
from app.primitives.outbox.routes.control import router as control
from app.primitives.outbox.routes.destinations import router as destinations
from app.primitives.outbox.routes.held import router as held
from app.primitives.outbox.routes.producers import router as producers
from app.primitives.outbox.routes.reconciling import router as reconciling

router = APIRouter()
for part in (destinations, producers, claims, held, reconciling, control):
    router.include_router(part)
