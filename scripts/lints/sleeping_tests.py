"""No `time.sleep` or `asyncio.sleep` in tests, but for `asyncio.sleep(0)`, which gives the loop a turn.

A test that sleeps is slow when the machine is fast and fails when it is slow. Move the clock, or wait for a condition
or an event with a timeout. Only the waits of tests/servers/base.py, which poll for a condition, may pause.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from scripts.lints.rule import Problem, Rule, Source, dotted

POLLING = ("tests/servers/base.py",)


def _applies(source: Source) -> bool:
    return source.is_python and source.within("tests") and source.path not in POLLING


def _check(source: Source) -> Iterator[Problem]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and dotted(node.func) in {"time.sleep", "asyncio.sleep", "anyio.sleep"}:
            if not _gives_a_turn(node):
                yield Problem(node.lineno, "sleeps; move the clock, or wait for a condition with a timeout")
        elif isinstance(node, ast.ImportFrom) and node.module in {"time", "asyncio", "anyio"}:
            if any(alias.name == "sleep" for alias in node.names):
                yield Problem(node.lineno, "imports sleep; move the clock, or wait for a condition with a timeout")


def _gives_a_turn(call: ast.Call) -> bool:
    zero = bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
    return zero and dotted(call.func) != "time.sleep"


RULE = Rule("sleeping-tests", _applies, _check)
