"""No file of the service longer than 320 lines.

A file that a newcomer cannot read in one go holds two things. Split it by verb (`ops/claim.py`), never into helpers.
"""

from __future__ import annotations

from collections.abc import Iterator

from scripts.lints.rule import Problem, Rule, Source

MOST_LINES = 320


def _applies(source: Source) -> bool:
    return source.is_python and source.within("app")


def _check(source: Source) -> Iterator[Problem]:
    count = len(source.text.splitlines())
    if count > MOST_LINES:
        yield Problem(MOST_LINES + 1, f"has {count} lines, {MOST_LINES} is the most; split it by verb")


RULE = Rule("file-length", _applies, _check)
