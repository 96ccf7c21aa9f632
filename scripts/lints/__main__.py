"""Run every rule over the repository and print what is wrong, a line each. Exit 1 if anything is."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from scripts.lints import RULES
from scripts.lints.files import sources


def findings() -> Iterator[str]:
    for source in sources():
        for rule in RULES:
            for problem in rule.problems(source):
                yield f"{source.path}:{problem.line}: {rule.name}: {problem.message}"


def main() -> int:
    found = list(findings())
    for line in found:
        print(line)
    print(f"lints: {len(RULES)} rules, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
