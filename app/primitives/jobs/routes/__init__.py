"""HTTP of the jobs: in and out, no decisions. A file for each kind of caller."""

from __future__ import annotations

from fastapi import APIRouter

from app.primitives.jobs.routes import control, queues, work

# fixed paths before those with an id, or `/v1/jobs/batch` would be looked up as a job
router = APIRouter()
router.include_router(work.router)
router.include_router(control.router)
router.include_router(queues.router)
