"""SQL as text, and database drivers, only where SQL belongs: app/db, a primitive's store.py (or store/) and tables.py.

import-linter watches the imports of the app's modules at their level; this rule also sees an import inside a function,
and statements written as strings, which no import shows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from scripts.lints.rule import Problem, Rule, Source

DRIVERS = frozenset({"sqlalchemy", "alembic", "pymysql", "psycopg", "sqlite3"})

_STATEMENT = re.compile(
    r"\s*(SELECT\s.+\sFROM|INSERT\s+INTO|UPDATE\s+\S+\s+SET|DELETE\s+FROM|(CREATE|ALTER|DROP)\s+TABLE)\s", re.DOTALL
)
_ALLOWED = re.compile(r"app/db/|app/primitives/[^/]+/(store\.py|store/|tables\.py)")


def _applies(source: Source) -> bool:
    return source.is_python and source.within("app") and not _ALLOWED.match(source.path)


def _check(source: Source) -> Iterator[Problem]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _STATEMENT.match(node.value):
            yield Problem(node.lineno, "holds SQL; a statement belongs in a store")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for module in _modules(node):
                if module.split(".")[0] in DRIVERS:
                    yield Problem(node.lineno, f"imports {module}; SQL belongs in app/db, stores and tables")


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]


RULE = Rule("sql-text", _applies, _check)
