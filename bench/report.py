"""What was measured: one `Figure` a line, as a table for people and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing. `ratio` is value / floor, or whatever `target` is about; `good`: whether the target is met.

    CPU is seconds per 1,000 jobs, of the service's processes and of the database server's.
    """

    case: str
    value: float
    unit: str
    floor: float | None = None
    floor_of: str = ""
    ratio: float | None = None
    target: str = ""
    good: bool | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    service_cpu: float | None = None
    database_cpu: float | None = None
    note: str = ""
    wrong: str = ""  # anything that must not be: a refusal, a count that does not fit


def show(figures: list[Figure], about: dict[str, Any]) -> None:
    """Print the table on the standard output, wide where it is a file."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    table = Table(
        box=box.SIMPLE_HEAD, title=", ".join(f"{name} {value}" for name, value in about.items()), title_justify="left"
    )
    for heading in (
        "case",
        "measured",
        "floor",
        "ratio",
        "target",
        "p50 ms",
        "p99 ms",
        "CPU s/1k",
        "DB CPU s/1k",
        "note",
    ):
        table.add_column(heading, justify="left" if heading in ("case", "note", "target") else "right", overflow="fold")
    for one in figures:
        table.add_row(
            one.case, f"{_number(one.value)} {one.unit}", f"{_number(one.floor)} {one.floor_of}".strip(), _number(one.ratio),
            Text(one.target, style={True: "green", False: "red", None: ""}[one.good]), _number(one.p50_ms), _number(one.p99_ms),
            _number(one.service_cpu), _number(one.database_cpu), Text(one.wrong or one.note, style="red" if one.wrong else ""),
        )  # fmt: skip
    console.print(table)
    wrong = [one for one in figures if one.wrong]
    console.print(
        f"{len(wrong)} WRONG" if wrong else "Every count in the database is what was acknowledged; nothing was refused."
    )


def write(path: Path, figures: list[Figure], about: dict[str, Any]) -> None:
    path.write_text(json.dumps({"about": about, "figures": [asdict(one) for one in figures]}, indent=2) + "\n")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.4g}"
