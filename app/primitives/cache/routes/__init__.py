"""HTTP in and out of the cache; decisions are in the ops."""

from __future__ import annotations

from fastapi import APIRouter

from app.primitives.cache.routes import entries, fills, policies

router = APIRouter()
for part in (entries, fills, policies):
    router.include_router(part.router)
