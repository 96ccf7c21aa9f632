"""What a primitive brings to a process: the shape of every `manifest.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.errors import Code
from app.runtime.lanes import LaneSpec
from app.runtime.loops import LoopSpec

if TYPE_CHECKING:
    from app.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Primitive:
    """`name` is the folder, table, route and metric prefix. `router` is a FastAPI router. `wire` may put in-memory state
    and desks into the runtime before it starts. `checks(runtime)` gives health checks, `collect(runtime)` metric families.
    `pages`: codes of its own that are no refusals, each with an example; they are explained at `/problems/<name>` as well.
    """

    name: str
    router: Any
    lanes: tuple[LaneSpec, ...] = ()
    loops: tuple[LoopSpec, ...] = ()
    wire: Callable[[Runtime], None] | None = None
    checks: Callable[[Runtime], Any] | None = None
    collect: Callable[[Runtime], Sequence[Any]] | None = None
    pages: Mapping[Code, Mapping[str, Any]] = field(default_factory=dict)
