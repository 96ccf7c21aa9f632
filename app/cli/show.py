"""What commands print. Data goes to the standard output: a table for people, tab-separated lines for a pipe, or JSON.

Messages go to the error stream. Colours and boxes only on a terminal, and no colour where NO_COLOR is set.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

COLOURS = {
    "pass": "green", "warn": "yellow", "fail": "red", "in force": "green", "expired": "yellow", "revoked": "red",
    "valid": "green", "violated": "red", "new": "red", "malformed": "red", "known": "yellow", "paid": "yellow",
    "sent": "green", "unknown": "yellow", "dead": "red",
}  # fmt: skip


def document(value: Any) -> None:
    """One JSON document on the standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def note(message: str) -> None:
    """A line for the person at the terminal; never data."""
    click.echo(message, err=True)


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    """`rows` by `columns` (key -> heading)."""
    texts = [[_text(row.get(key)) for key in columns] for row in rows]
    if sys.stdout.isatty():
        _boxed(list(columns.values()), texts)
        return
    for line in (list(columns.values()), *texts):
        click.echo("\t".join(line))


def _boxed(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box  # noqa: PLC0415 - slow to import, and most commands print no table
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        shown.add_column(heading, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))  # Text: names are not markup
    Console().print(shown)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(str(one) for one in value) or "-"
    return str(value).replace("\t", " ").replace("\n", " ")
