"""What the audit brings to a process: one reading lane."""

from __future__ import annotations

from app.primitives.audit.ops import list_entries
from app.primitives.audit.routes import router
from app.runtime.lanes import LaneSpec
from app.runtime.primitive import Primitive

AUDIT = Primitive("audit", router, lanes=(LaneSpec("audit.list", list_entries, "read", reads=True),))
