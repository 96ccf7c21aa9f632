"""The one list of primitives. Nothing is found by scanning: what is not here does not exist."""

from __future__ import annotations

from app.primitives.audit.manifest import AUDIT
from app.primitives.cache.manifest import CACHE
from app.primitives.contracts.manifest import CONTRACTS
from app.primitives.idempotency.manifest import IDEMPOTENCY
from app.primitives.jobs.manifest import JOBS
from app.primitives.keys.manifest import KEYS
from app.primitives.locks.manifest import LOCKS
from app.primitives.outbox.manifest import OUTBOX
from app.runtime.primitive import Primitive

PRIMITIVES: tuple[Primitive, ...] = (JOBS, OUTBOX, LOCKS, IDEMPOTENCY, CACHE, CONTRACTS, KEYS, AUDIT)
