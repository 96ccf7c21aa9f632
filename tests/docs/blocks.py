"""The fenced code blocks of a page, by the words of their opening line: "```sql mariadb mysql" holds for these two engines."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.e2e.process import ROOT

_FENCED = re.compile(r"^```(\w+)([ \w]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    section: str  # the nearest heading above it
    language: str
    words: tuple[str, ...]  # what stands behind the language
    text: str


def blocks_of(page: str) -> list[Block]:
    """Every block of a page of this repository, from its top."""
    found = []
    for part in re.split(r"^#+ ", (ROOT / page).read_text(), flags=re.MULTILINE):
        heading = part.partition("\n")[0]
        found += [Block(heading, one[1], tuple(one[2].split()), one[3]) for one in _FENCED.finditer(part)]
    return found
