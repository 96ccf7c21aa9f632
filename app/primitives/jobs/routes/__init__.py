"""HTTP of the jobs: in and out, no decisions. A file for each kind of call."""

from __future__ import annotations

from fastapi import APIRouter

from app.primitives.jobs.routes.claims import router as claims
from app.primitives.jobs.routes.control import router as control
from app.primitives.jobs.routes.held import router as held
from app.primitives.jobs.routes.producers import router as producers
from app.primitives.jobs.routes.queues import router as queues

router = APIRouter()
for part in (producers, claims, held, control, queues):
    router.include_router(part)
