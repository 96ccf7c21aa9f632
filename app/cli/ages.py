"""Ages on the command line: `<count><unit>` with s, m, h or d. A malformed one ends the command before it touches anything."""

from __future__ import annotations

import re

import click

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MOST_SECONDS = 100 * 366 * 86_400
_AGE = re.compile(r"([0-9]{1,10})([smhd])", re.ASCII)


class Age(click.ParamType[int]):
    """Turns `30d` into seconds. `least`, `most`: the ages in seconds that make sense."""

    name = "age"

    def __init__(self, least: int = 0, most: int = MOST_SECONDS) -> None:
        self._least, self._most = least, most

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "AGE"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):  # a default
            return value
        found = _AGE.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is no age: give a count and a unit, such as 90s, 15m, 12h or 30d", param, ctx)
        seconds = int(found[1]) * SECONDS[found[2]]
        if not self._least <= seconds <= self._most:
            most = "100 years" if self._most == MOST_SECONDS else f"{self._most} seconds"
            self.fail(f"{value!r} is not between {self._least} seconds and {most}", param, ctx)
        return seconds
