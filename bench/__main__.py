"""`python -m bench`: see `--help`."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console

from app.logs import set_up
from bench import backlog, cases, keys, outbox, report, small, waits, wrk
from bench.report import Figure
from bench.stand import Stand, standing
from bench.tape import Floor

PARTS = ("throughput", "pickup", "idle", "backlog", "keys", "outbox", "small")


@click.command()
@click.option("--engine", default="mariadb", show_default=True, help="sqlite, mariadb, mysql or postgresql.")
@click.option("--processes", type=click.IntRange(1, 8), default=1, show_default=True, help="Service processes.")
@click.option("--quick", is_flag=True, help="About 90 seconds, small backlogs; else under ten minutes.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Only these parts; may be repeated.")
@click.option("--only", default="", help="Only throughput cases whose name holds this.")
@click.option("--statements", is_flag=True, help="Also print the floor's statements.")
@click.option(
    "--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Also write everything to this file."
)
def main(
    engine: str,
    processes: int,
    quick: bool,  # noqa: FBT001 - click passes flags so
    parts: tuple[str, ...],
    only: str,
    statements: bool,  # noqa: FBT001
    path: Path | None,
) -> None:
    """Measure Tenure over HTTP against one bare database connection that runs the same statements."""
    if reason := wrk.missing():
        raise click.ClickException(reason)
    set_up("error")
    pace, began = cases.QUICK if quick else cases.FULL, time.monotonic()
    figures: list[Figure] = []
    with standing(engine, processes) as stand:
        floor = Floor(stand.floor_url)
        said = Console(stderr=True)
        about = {
            "engine": f"{engine} {floor.database.capabilities['server_version']}",
            "service processes": processes,
            "Python": platform.python_version(),
            "machine": f"{platform.machine()} with {_cores()} cores",
        }
        for figure in _figures(stand, floor, pace, parts or PARTS, only):
            figures.append(figure)
            said.print(
                f"{time.monotonic() - began:5.0f} s  {figure.case}: {figure.value:,.4g} {figure.unit}", highlight=False
            )
        if statements:
            _print_statements(floor)
        floor.close()
    report.show(figures, about)
    if path is not None:
        report.write(path, figures, about)
    sys.exit(1 if any(figure.wrong for figure in figures) else 0)


def _figures(stand: Stand, floor: Floor, pace: cases.Pace, parts: tuple[str, ...], only: str) -> Iterator[Figure]:
    if "throughput" in parts:
        yield from cases.all_cases(stand, floor, pace, only)
    if "pickup" in parts:
        yield from waits.pickup(stand, pace)
    if "idle" in parts:
        yield from waits.idle(stand, pace)
    if "backlog" in parts:
        yield from backlog.against_backlog(stand, pace)
    if "keys" in parts:
        yield from keys.all_keys(stand, pace)
    if "outbox" in parts:
        yield from outbox.all_outbox(stand, pace)
    if "small" in parts:
        yield from small.all_small(stand, floor, pace)
    now, most = stand.memory_mib()
    yield Figure("memory of one service process at the end", now, "MiB", note=f"highest {most:.0f} MiB")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _print_statements(floor: Floor) -> None:
    for batch in floor.recorded:
        for verb, statements in floor.statements(batch).items():
            click.echo(f"-- {verb}({batch})")
            for statement in statements:
                click.echo(" ".join(statement.split()) + ";")


if __name__ == "__main__":
    main()
