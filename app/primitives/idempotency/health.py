"""What idempotency tells health checks and metrics: outcomes of this process's checks, and keys by state."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.errors import Refusal
from app.primitives.idempotency.here import Here
from app.primitives.idempotency.model import Outcome
from app.runtime.checks import Check
from app.runtime.runtime import Runtime

ALL = "*"  # about every scope: for keys that are not limited
_OUTCOMES = (*(one.value for one in Outcome), "conflict")


async def checks(runtime: Runtime) -> list[Check]:
    """`warn` while keys wait for a verdict."""
    states = await runtime.lane("idempotency.count").submit(None)
    unknown = states["unknown"]
    output = f"{unknown} keys are unknown and wait for a verdict: GET /v1/idempotency" if unknown else None
    return [Check("idempotency.unknown", "warn" if unknown else "pass", unknown, "keys", output, ALL)]


def collect(runtime: Runtime) -> Sequence[Metric]:
    """From memory alone. Keys are counted anew; the next scrape finds it."""
    memory: Here = runtime.state("idempotency")
    lane = runtime.lane("idempotency.count")
    if not lane.waiting:
        with suppress(Refusal):  # too much is waiting in this process, or it ends; what is known is told
            _ = lane.put(None)
    counts = memory.counts()
    checked = CounterMetricFamily("tenure_idempotency_checks", "Checks in this process by outcome.", labels=["outcome"])
    for outcome in _OUTCOMES:
        checked.add_metric([outcome], counts[outcome])
    lost = CounterMetricFamily(
        "tenure_idempotency_owners_lost", "Keys whose owners let their leases end.", value=counts["owner_lost"]
    )
    families: list[Metric] = [checked, lost]
    if memory.states is not None:
        keys = GaugeMetricFamily("tenure_idempotency_keys", "Keys by state.", labels=["state"])
        for state, amount in memory.states.items():
            keys.add_metric([state], amount)
        families.append(keys)
    return families
