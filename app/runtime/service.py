"""What every process runs whatever its primitives: the clock, the proof of writability, the schema's state."""

from __future__ import annotations

from typing import Any

import structlog

from app.clock import MICROS
from app.db import ops, upkeep
from app.runtime.lanes import LaneSpec
from app.runtime.loops import LoopSpec

log = structlog.get_logger("tenure.service")

JUMP_MICROS = MICROS  # a step of the database's clock that is worth a line
FORGET_REPLICAS_AFTER = 24 * 3600 * MICROS

SERVICE_LANES = (
    LaneSpec("service.beat", ops.beat, "sweep"),
    LaneSpec("service.forget_silent", ops.forget_silent, "sweep"),
    LaneSpec("service.clock", upkeep.read_clock, "renew", reads=True),
    LaneSpec("service.schema", upkeep.read_schema, "read", reads=True),
    LaneSpec("service.clearing", upkeep.read_clearing, "read", reads=True),
)


async def _measure(runtime: Any) -> float | None:
    step = await runtime.lane("service.clock").submit(runtime.clock)
    if abs(step) > JUMP_MICROS:
        log.warning("database_clock_stepped", seconds=step / MICROS)
    return None


async def _upkeep(runtime: Any) -> float | None:
    await runtime.lane("service.forget_silent").submit(FORGET_REPLICAS_AFTER)
    return None


SERVICE_LOOPS = (LoopSpec("service.clock", 2.0, _measure), LoopSpec("service.upkeep", 60.0, _upkeep))
