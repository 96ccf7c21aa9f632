"""No comparison with a dialect's name outside app/db/dialects.

A branch on the engine's name spreads what an engine can do over the whole code, and the next engine or version needs
all of those places found again. Dialects have capabilities with names; the code asks those.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from scripts.lints.rule import Problem, Rule, Source, dotted

ENGINES = frozenset({"sqlite", "mysql", "mariadb", "postgresql", "postgres"})


def _applies(source: Source) -> bool:
    return source.is_python and source.within("app") and not source.within("app/db/dialects")


def _check(source: Source) -> Iterator[Problem]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            sides = [node.subject]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
            sides = [node.func.value]
        else:
            continue
        if any(_names_a_dialect(side) for side in sides) or any(_is_engine_word(side) for side in sides):
            yield Problem(node.lineno, "branches on the dialect's name; give the dialect a capability and ask that")


def _names_a_dialect(node: ast.expr) -> bool:
    path = dotted(node)
    if isinstance(node, ast.Call):
        path = dotted(node.func)
    return path.endswith(("dialect.name", "dialect_name", "get_backend_name", "get_dialect", "drivername"))


def _is_engine_word(node: ast.expr) -> bool:
    items = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return any(isinstance(item, ast.Constant) and item.value in ENGINES for item in items)


RULE = Rule("dialect-names", _applies, _check)
