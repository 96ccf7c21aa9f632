"""No bare `except:`, and no broad one that does nothing.

An error that nobody sees is found by the user. Catch what is expected by its name; where a loop must outlive anything,
log it. A cancelled or interrupted task must never be held back by a bare `except`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from scripts.lints.rule import Problem, Rule, Source, dotted

BROAD = frozenset({"Exception", "BaseException"})


def _applies(source: Source) -> bool:
    return source.is_python


def _check(source: Source) -> Iterator[Problem]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield Problem(node.lineno, "bare except; name what you expect")
            elif _is_broad(node.type) and all(_does_nothing(statement) for statement in node.body):
                yield Problem(node.lineno, "swallows every error; name what you expect, or log it")
        elif isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] == "suppress":
            if any(_is_broad(argument) for argument in node.args):
                yield Problem(node.lineno, "suppresses every error; name what you expect")


def _is_broad(node: ast.expr) -> bool:
    items = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(dotted(item).split(".")[-1] in BROAD for item in items)


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Pass | ast.Continue):
        return True
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


RULE = Rule("swallowed-errors", _applies, _check)
