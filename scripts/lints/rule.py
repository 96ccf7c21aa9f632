"""What a rule is: a name, the files that it looks at, and a function from a file to its problems."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Source:
    """One file of the repository."""

    path: str  # from the root of the repository, with slashes
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The file as Python."""
        return ast.parse(self.text, filename=self.path)

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")

    def within(self, *folders: str) -> bool:
        return self.path.startswith(tuple(f"{folder}/" for folder in folders))


@dataclass(frozen=True)
class Problem:
    """A line that breaks a rule."""

    line: int
    message: str


@dataclass(frozen=True)
class Rule:
    """A rule and how to check it."""

    name: str
    applies: Callable[[Source], bool]
    check: Callable[[Source], Iterator[Problem]]

    def problems(self, source: Source) -> list[Problem]:
        """Return what is wrong with a file, less the lines that say `# allow <rule>: <reason>`."""
        if not self.applies(source):
            return []
        lines = source.text.splitlines()
        allowed = re.compile(rf"# allow {re.escape(self.name)}: \S")
        return [problem for problem in self.check(source) if not allowed.search(lines[problem.line - 1])]


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for an attribute chain, and an empty string for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""
