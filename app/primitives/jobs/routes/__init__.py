"""HTTP of the jobs: in and out, no decisions. A file for each kind of caller."""

from __future__ import annotations

from fastapi import APIRouter

from app.primitives.jobs.routes.control import router as control
from app.primitives.jobs.routes.queues import router as queues
from app.primitives.jobs.routes.work import router as work

# fixed paths before those with an id, or `/v1/jobs/batch` would be looked up as a job
router = APIRouter()
for part in (work, control, queues):
    router.include_router(part)
