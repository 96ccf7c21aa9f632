"""Probes. `/livez` asks whether this process runs, `/readyz` whether it may be given traffic, `/startupz` whether it has
started, `/health` for every check with its figures.

A probe never hammers the database: what needs it is asked once a second at most, whoever probes, and shared by all. `/livez`
does not ask it at all: a restart mends no database.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog
from pydantic import Field

from app.access import Role
from app.clock import MICROS, seconds, steady_micros
from app.errors import Refusal
from app.http.call import Answer, Call
from app.http.metrics import release
from app.http.routing import OPEN, thin_router
from app.jsontext import Read
from app.runtime import clearing
from app.runtime.checks import Check, Status

log = structlog.get_logger("tenure.health")

MEDIA_TYPE = "application/health+json"
SHARED_FOR = MICROS
PROBE_SECONDS = 2.0
_WORST: tuple[Status, ...] = ("pass", "warn", "fail")

router = thin_router(tags=["probes"])


class HealthCheckRead(Read):
    """One thing that was looked at."""

    name: str = Field(examples=["database.write"])
    status: str = Field(description="`pass`, `warn` or `fail`.")
    value: float | None = Field(description="The figure.")
    unit: str | None = Field(description="What the figure counts.")
    output: str | None = Field(description="What is wrong, or what was seen, for people.")


class HealthRead(Read):
    """The worst of the checks, and all of them."""

    status: str = Field(description="`pass`, `warn` or `fail`.")
    version: str
    output: str | None = Field(description="The first reason, for people.")
    checks: list[HealthCheckRead]


class Readiness:
    """What the database says about itself, asked at most once a second and shared by all who ask."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._name = f"{socket.gethostname()[:64]}.{id(self):x}"
        self._known: list[Check] = []
        self._asked = 0
        self._asking: asyncio.Task[list[Check]] | None = None

    async def checks(self) -> list[Check]:
        """The checks of the database, at most a second old."""
        if self._asking is None:
            if self._known and steady_micros() - self._asked < SHARED_FOR:
                return self._known
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> list[Check]:
        try:
            self._known = list(await asyncio.gather(self._write(), self._schema()))
        finally:
            self._asked = steady_micros()
            self._asking = None
        return self._known

    async def _write(self) -> Check:
        """A real write, through a lane as every other."""
        began = steady_micros()
        fault = await self._tried(self._runtime.lane("service.beat").submit(self._name))
        if isinstance(fault, str):
            return Check("database.write", "fail", output=f"the database takes no writes: {fault}")
        return Check("database.write", "pass", round(seconds(steady_micros() - began), 4), "seconds")

    async def _schema(self) -> Check:
        state = await self._tried(self._runtime.lane("service.schema").submit(None), result=True)
        if state in ("current", "ahead"):
            return Check("database.schema", "pass", output=state)
        known = state in ("behind", "empty")
        why = f"the schema is {state}: run `tenure migrate`" if known else f"the database cannot be read: {state}"
        return Check("database.schema", "fail", output=why)

    async def _tried(self, asked: Awaitable[Any], *, result: bool = False) -> Any:
        """What was answered (if `result`), None for a success, or a text that names the fault and nothing of its content."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                answer = await asked
        except Refusal as refusal:
            return refusal.code.name
        except TimeoutError:
            return f"no answer within {PROBE_SECONDS:g} seconds"
        return answer if result else None


def own_checks(runtime: Any) -> list[Check]:
    """What this process knows without asking anybody: draining, loops, crews, the age of its keys."""
    draining = runtime.draining.is_set()
    checks = [
        Check("process.draining", "fail" if draining else "pass", output="this process ends" if draining else None)
    ]
    for name, loop in sorted(runtime.loops.items()):
        good = loop.healthy()
        bad: Status = "fail" if loop.spec.essential else "warn"
        output = None if good else f"the loop {name} has not succeeded lately"
        checks.append(Check(f"loop.{name}", "pass" if good else bad, round(loop.age_seconds(), 1), "seconds", output))
    if not runtime.crews_alive():
        checks.append(Check("process.crews", "fail", output="a database thread has ended"))
    age = runtime.state("keys").age_seconds()
    late = age is None or age > 10
    output = "the API keys were not read lately" if late else None
    checks.append(
        Check("api_keys.age", "warn" if late else "pass", None if age is None else round(age, 1), "seconds", output)
    )
    return checks


def _readiness(call: Call) -> Readiness:
    state = call.scope["app"].state
    if not hasattr(state, "readiness"):
        state.readiness = Readiness(call.runtime)
    return state.readiness  # type: ignore[no-any-return]  # set above


def _answer(checks: Sequence[Check], *, quiet: bool = True, details: bool = True) -> Answer:
    worst = max((check.status for check in checks), key=_WORST.index, default="pass")
    reason = next((check.output for check in checks if check.status == worst and check.output), None)
    body: dict[str, Any] = {
        "status": worst,
        "version": release(),
        "output": reason if worst != "pass" else None,
        "checks": [],
    }
    if details:
        body["checks"] = [
            {"name": one.name, "status": one.status, "value": one.value, "unit": one.unit, "output": one.output}
            for one in checks
        ]
    return Answer(body, status=503 if worst == "fail" else 200, media_type=MEDIA_TYPE, quiet=quiet)


_DOWN = {503: "It is not; `output` says why."}


@router.get("/livez", name="get_livez", requires=OPEN, answers=HealthRead, media_type=MEDIA_TYPE, also=_DOWN)
async def get_livez(_call: Call) -> Answer:
    """Does this process run?

    That it answers shows that its event loop turns. The database is not asked: do restart on this one.
    """
    return _answer([Check("process.event_loop", "pass")])


@router.get("/startupz", name="get_startupz", requires=OPEN, answers=HealthRead, media_type=MEDIA_TYPE, also=_DOWN)
async def get_startupz(call: Call) -> Answer:
    """Has this process started?

    It has read its API keys and measured the database's clock.
    """
    started = call.runtime.clock.measured and call.runtime.state("keys").age_seconds() is not None
    return _answer(
        [Check("process.started", "pass" if started else "fail", output=None if started else "it is starting")]
    )


@router.get("/readyz", name="get_readyz", requires=OPEN, answers=HealthRead, media_type=MEDIA_TYPE, also=_DOWN)
async def get_readyz(call: Call) -> Answer:
    """May this process be given traffic?

    The database took a write within the last second, its schema serves this release, the loops are alive, and the process
    does not end. Else 503, and `output` names the reason.
    """
    checks = own_checks(call.runtime)
    if not call.runtime.draining.is_set():
        checks += await _readiness(call).checks()
    return _answer(checks)


@router.get("/health", name="get_health", requires=Role.VIEWER, answers=HealthRead, media_type=MEDIA_TYPE, also=_DOWN)
async def get_health(call: Call) -> Answer:
    """Get every check with its figures.

    Those of the probes and those of every primitive; a key that is limited to names sees those names only. `fail` is
    answered with 503, `warn` with 200.
    """
    checks = [*own_checks(call.runtime), *await _readiness(call).checks(), *await clearing.checks(call.runtime)]
    for source in call.scope["app"].state.checks:
        checks += await _checked(source, call.runtime)
    return _answer([check for check in checks if check.subject is None or call.principal.allows(check.subject)])


async def _checked(source: Callable[[Any], Any], runtime: Any) -> Sequence[Check]:
    try:
        found = source(runtime)
        checks: Sequence[Check] = await found if isinstance(found, Awaitable) else found
    except Refusal as refusal:
        checks = [Check(source.__module__.rsplit(".", 1)[0], "fail", output=f"cannot be checked: {refusal.code.name}")]
    return checks
