"""How a command fails: one line on the error stream, with `--json` the problem on the standard output, and an exit code.

1 failed   2 wrong usage   3 no such thing   4 conflict   5 key missing or not allowed   6 service or database away
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

FAILED, USAGE, MISSING, CONFLICT, REFUSED, AWAY, FOUND = 1, 2, 3, 4, 5, 6, 7

_BY_STATUS = {
    400: USAGE, 401: REFUSED, 403: REFUSED, 404: MISSING, 409: CONFLICT, 413: USAGE, 415: USAGE, 422: USAGE, 423: CONFLICT,
    429: AWAY, 502: AWAY, 503: AWAY, 504: AWAY,
}  # fmt: skip


class CommandFailed(click.ClickException):
    """Ends the command. `problem` is what the service (or an op) answered, if it did."""

    def __init__(self, message: str, exit_code: int, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it for the class and reads it of the instance
        self.problem = problem
        context = click.get_current_context(silent=True)
        self._as_json = context is not None and bool(context.params.get("as_json"))

    def show(self, file: Any = None) -> None:
        if self.problem is not None and self._as_json:
            click.echo(json.dumps(self.problem, indent=2, ensure_ascii=False))
        click.echo(f"tenure: {self.message}", err=True, file=file)


def of_problem(problem: Mapping[str, Any], status: int) -> CommandFailed:
    """The failure that a problem document (RFC 9457) means."""
    faults = "; ".join(f"{fault.get('pointer')} {fault.get('detail')}" for fault in problem.get("errors") or ())
    detail = str(problem.get("detail") or problem.get("title") or f"status {status}")
    message = f"{problem.get('code', 'failed')}: {detail}{f' ({faults})' if faults else ''}"
    return CommandFailed(message, exit_code_of(status), problem)


def exit_code_of(status: int) -> int:
    return _BY_STATUS.get(status, FAILED)
