"""The header that tells producers of types without a valid contract, where the queue's policy is to warn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from app.errors import Refusal
from app.primitives.jobs.model import Enqueued, Flow

HEADER = "Tenure-Contract-Warning"
LONGEST = 1000
DESCRIPTION = (
    'Where the contract policy is `warn`: `contract_required; type="…"; schema_version=1; jobs=2`, or `contract_violated` '
    'with `rules="QUEUE001 QUEUE003"`; one entry for each type and version, separated by commas. At most 1,000 characters and '
    "then `more; jobs=…`."
)


def headers_of(outcomes: Iterable[object]) -> dict[str, str] | None:
    """The header for these outcomes; None if there is nothing to warn of."""
    warned: Counter[str] = Counter()
    for outcome in outcomes:
        if isinstance(outcome, Enqueued) and outcome.warning is not None:
            warned[_entry(outcome.job.flow, outcome.warning)] += 1
    return {HEADER: _bounded(warned)} if warned else None


def _entry(flow: Flow, warning: Refusal) -> str:
    _, type_, version = flow
    rules = " ".join(warning.extra.get("rules", ()))
    told = f'{warning.code.name}; type="{type_}"; schema_version={version}'
    return f'{told}; rules="{rules}"' if rules else told


def _bounded(warned: Counter[str]) -> str:
    whole: list[str] = []
    length, left = 0, warned.total()
    for entry, jobs in warned.items():
        text = f"{entry}; jobs={jobs}"
        if length + len(text) > LONGEST:
            whole.append(f"more; jobs={left}")
            break
        whole.append(text)
        length += len(text) + 2
        left -= jobs
    return ", ".join(whole)
