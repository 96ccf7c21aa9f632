"""No path of a developer's or a build machine, and no package registry's host, in any file.

Such a name works where it was written and nowhere else, and a lock that names an index takes packages from it behind
the back of whoever installs. Only `.ci/run` may reach beside the checkout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from scripts.lints.rule import Problem, Rule, Source

# Spelled in pieces, so that this file passes its own rule.
_REGISTRIES = (
    ("pypi", "org"),
    ("python" + "hosted", "org"),  # in two, or a reader of plain text takes it for the host
    ("registry", "npmjs", "org"),
    ("registry", "yarnpkg", "com"),
    ("deb", "debian", "org"),
    ("proxy", "golang", "org"),
    ("crates", "io"),
    ("repo1", "maven", "org"),
    ("rubygems", "org"),
    ("packagist", "org"),
)
_FOLDERS = ("work", "root", "opt/pypi", "home")
_BESIDE = "../" + "shared"
_BESIDE_ALLOWED = ".ci/run"

_HOST = re.compile("|".join(r"\.".join(parts) for parts in _REGISTRIES), re.IGNORECASE)
_OPTION = re.compile(r"\s*(-[a-z]\b|--(?!hash=)\S+|.*@ \w+:)")
_PATH = re.compile(r"(?<![\w.}>$*-])/(?:" + "|".join(_FOLDERS) + r")/(?=\w)|(?<![\w.}>$*-])/" + "work" + r"(?![\w-])")


def _applies(source: Source) -> bool:
    return source.path != "LICENSE"


def _check(source: Source) -> Iterator[Problem]:
    for number, line in enumerate(source.text.splitlines(), start=1):
        if match := _HOST.search(line):
            yield Problem(number, f"names the registry {match[0]}")
        if match := _PATH.search(line):
            yield Problem(number, f"names a path of one machine: {match[0]}")
        if source.path.endswith(".lock") and (match := _OPTION.match(line)):
            yield Problem(number, f"a lock must not choose where packages come from: {match[0].strip()}")
        if _BESIDE in line and source.path != _BESIDE_ALLOWED:
            yield Problem(number, f"reaches beside the checkout; only {_BESIDE_ALLOWED} may")


RULE = Rule("places", _applies, _check)
