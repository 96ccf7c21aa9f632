"""The couriers of this process: one for each destination with `mode: http`, kept as the destinations are set."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from app.outgoing.vault import Vault
from app.primitives.outbox.delivery.courier import Courier
from app.primitives.outbox.delivery.timing import Timing
from app.primitives.outbox.model.destinations import Secrets
from app.primitives.outbox.ops.destinations import Served
from app.primitives.outbox.ops.secrets import UNREADABLE, opened
from app.runtime.runtime import Runtime

log = structlog.get_logger("tenure.outbox.delivery")


@dataclass(slots=True)
class Couriers:
    """By destination. `unreadable`: destinations that are not delivered to, because their secrets cannot be opened.
    `timings`: how long calls took since this process began, by destination and outcome.
    """

    runtime: Runtime
    by_name: dict[str, Courier] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    timings: dict[tuple[str, str], Timing] = field(default_factory=dict)  # by destination and outcome

    async def refresh(self) -> None:
        """Begin with destinations that are new, take over what was set anew, and end with those that are gone."""
        served: list[Served] = await self.runtime.lane("outbox.served").submit(None)
        if self.runtime.draining.is_set():
            return
        known = {one.destination.name: (one, secrets) for one in served if (secrets := self._open(one)) is not None}
        self.unreadable = {
            name: why for name, why in self.unreadable.items() if name in {s.destination.name for s in served}
        }
        for name, (one, secrets) in known.items():
            self.unreadable.pop(name, None)
            courier = self.by_name.get(name)
            if courier is None or courier.failed:
                courier = self.by_name[name] = Courier(self.runtime, one.destination, secrets, self._took)
                courier.start()
            courier.destination, courier.secrets = one.destination, secrets
        gone = [self.by_name.pop(name) for name in [*self.by_name] if name not in known]
        await asyncio.gather(*(courier.stop(courier_grace(self.runtime)) for courier in gone))

    def _open(self, one: Served) -> Secrets | None:
        vault: Vault = self.runtime.state("vault")
        name = one.destination.name
        try:
            return opened(vault, name, one.sealed)
        except UNREADABLE as fault:
            if self.unreadable.get(name) != str(fault):
                log.error("destination_secrets_unreadable", destination=name, why=str(fault))
            self.unreadable[name] = str(fault)
            return None

    def _took(self, name: str, outcome: str, micros: int) -> None:
        self.timings.setdefault((name, outcome), Timing()).add(micros)

    def left_alone(self) -> dict[str, float]:
        """For each destination that this process delivers to: for how many seconds it is left alone because it fails."""
        now = asyncio.get_running_loop().time()
        return {
            name: courier.breaker.open_for(now) if courier.breaker.tripped else 0.0
            for name, courier in self.by_name.items()
        }

    async def stop(self) -> None:
        await asyncio.gather(*(courier.stop(courier_grace(self.runtime)) for courier in self.by_name.values()))


def courier_grace(runtime: Runtime) -> float:
    return runtime.settings.delivery_grace_seconds
