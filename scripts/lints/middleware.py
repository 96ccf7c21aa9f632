"""No BaseHTTPMiddleware, and no `@app.middleware("http")`, which is the same.

It hides a client's hang-up from the route, so a waiting claim would take a job for a worker that has gone. Middleware
is a plain ASGI callable.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from scripts.lints.rule import Problem, Rule, Source, dotted

MESSAGE = "hides disconnects from waiting claims; write a plain ASGI middleware"


def _applies(source: Source) -> bool:
    return source.is_python and source.within("app")


def _check(source: Source) -> Iterator[Problem]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "BaseHTTPMiddleware" for alias in node.names):
            yield Problem(node.lineno, MESSAGE)
        elif isinstance(node, ast.Attribute) and node.attr == "BaseHTTPMiddleware":
            yield Problem(node.lineno, MESSAGE)
        elif isinstance(node, ast.Call) and dotted(node.func).endswith(".middleware") and _is_http(node):
            yield Problem(node.lineno, MESSAGE)


def _is_http(call: ast.Call) -> bool:
    return any(isinstance(argument, ast.Constant) and argument.value == "http" for argument in call.args)


RULE = Rule("middleware", _applies, _check)
