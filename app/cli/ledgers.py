"""The baseline file: known debt, sorted, one entry on a line, so that each change shows as itself in a review."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path

import click

from app.cli.failure import FAILED, CommandFailed
from app.errors import Refusal
from app.jsontext import parse
from app.primitives.contracts.model.judging import Finding
from app.primitives.contracts.model.manifest import Debt, Ledger

DEFAULT_NAME = "tenure-contracts-baseline.json"
MOST_BYTES = 8 * 1024 * 1024


def read(path: Path, *, needed: bool) -> Ledger:
    """The ledger; empty if the file is not there and not `needed`. Raises: click.UsageError."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        if needed:
            raise click.UsageError(f"there is no baseline {path}") from None
        return Ledger(version=1)
    except OSError as fault:
        raise click.UsageError(f"the baseline {path} cannot be read: {fault.strerror}") from None
    if len(raw) > MOST_BYTES:
        raise click.UsageError(f"the baseline {path} has more than {MOST_BYTES} bytes")
    try:
        return parse(Ledger, raw, max_value_bytes=1)
    except Refusal as refusal:
        faults = "; ".join(f"{one.pointer} {one.detail}" for one in refusal.errors) or refusal.detail
        raise click.UsageError(f"the baseline {path} is malformed: {faults}") from None


def renewed(
    ledger: Ledger,
    violations: Iterable[Finding],
    in_scope: Callable[[str], bool],
    today: date,
    reason: str | None,
) -> Ledger:
    """The ledger with what is violated now. What lies outside of the scope stays; what is new is entered for `reason`."""
    old = {debt.id: debt for debt in ledger.debt}
    kept = {id_: debt for id_, debt in old.items() if not in_scope(id_.rsplit("::", 2)[0])}
    for finding in violations:
        kept[finding.id] = old.get(finding.id) or Debt(id=finding.id, since=today, reason=reason or "")
    return Ledger(version=1, debt=[kept[id_] for id_ in sorted(kept)])


def text_of(ledger: Ledger) -> str:
    lines = [
        json.dumps({"id": one.id, "since": one.since.isoformat(), "reason": one.reason}, ensure_ascii=False)
        for one in ledger.debt
    ]
    debt = "[\n    " + ",\n    ".join(lines) + "\n  ]" if lines else "[]"
    return f'{{\n  "version": {ledger.version},\n  "debt": {debt}\n}}\n'


def write(path: Path, ledger: Ledger) -> bool:
    """Replace the file as a whole, unless it says the same already; gives whether it was written."""
    text = text_of(ledger).encode()
    if path.exists() and path.read_bytes() == text:
        return False
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(text)
        beside.replace(path)
    except OSError as fault:
        beside.unlink(missing_ok=True)
        raise CommandFailed(f"the baseline {path} cannot be written: {fault.strerror}", FAILED) from None
    return True
