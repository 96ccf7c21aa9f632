"""How `tenure contracts check` tells what it found: a table for people, JSON for programs, annotations for GitHub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from app.cli import show
from app.cli.manifests import Sources, line_of
from app.primitives.contracts.model.judging import Finding
from app.primitives.contracts.model.review import Review
from app.primitives.contracts.model.telling import check_view

Places = dict[tuple[str, str, int | None], tuple[str, dict[str, int]]]

COLUMNS = {"standing": "standing", "place": "where", "contract": "contract", "rule": "rule", "detail": "what is wrong"}


def tell(form: str, sources: Sources, found: Review, ledger: Path, *, strict: bool) -> None:
    places = _places(sources)
    if form == "json":
        show.document(_document(sources, found, places, strict=strict))
    elif form == "github":
        for line in _annotations(sources, found, places, ledger, strict=strict):
            click.echo(line)
    else:
        _text(sources, found, places, ledger)
    count = found.contracts
    show.note(
        f"{count} contract{'' if count == 1 else 's'} in {len(sources.files)} files: {len(found.new)} new, "
        f"{len(found.known)} known, {len(found.paid)} paid, {len(found.exempted)} exempted, "
        f"{len(found.excluded)} excluded, {len(sources.malformed)} malformed."
    )


def _places(sources: Sources) -> Places:
    """(file, type, version) -> the pointer of that contract, and the lines of its file."""
    found: Places = {}
    for source, pointer, one in sources.contracts():
        found[source.file, one.type, one.schema_version] = pointer, source.lines
    for source, pointer, left_out in sources.excluded():
        found[source.file, left_out.type, None] = pointer, source.lines
    return found


def _line(finding: Finding, places: Places) -> int:
    pointer, lines = places[finding.file, finding.type, finding.schema_version]
    inner = "/reason" if finding.schema_version is None else finding.pointer
    return line_of(lines, f"{pointer}{inner}")


def _standings(found: Review) -> Iterator[tuple[str, Finding]]:
    yield from (("new", one) for one in found.new)
    yield from (("known", one) for one in found.known)
    yield from (("exempted", one.finding) for one in found.exempted)


def _contract(finding: Finding) -> str:
    return f"{finding.type}@{'*' if finding.schema_version is None else finding.schema_version}"


def _text(sources: Sources, found: Review, places: Places, ledger: Path) -> None:
    rows = [
        {"standing": "malformed", "place": f"{one.file}:{one.line}", "detail": one.detail} for one in sources.malformed
    ]
    rows += [
        {
            "standing": standing,
            "place": f"{one.file}:{_line(one, places)}",
            "contract": _contract(one),
            "rule": str(one.rule),
            "detail": one.detail,
        }
        for standing, one in _standings(found)
    ]
    rows += [
        {"standing": "paid", "place": str(ledger), "contract": id_, "detail": "run --update"} for id_ in found.paid
    ]
    if rows:
        show.table(COLUMNS, rows)
    for rule, mend in dict.fromkeys((one.rule, one.mend) for one in found.new):
        show.note(f"{rule}: {mend}")


def _document(sources: Sources, found: Review, places: Places, *, strict: bool) -> dict[str, Any]:
    view = check_view(found, strict=strict)
    for name, findings in (
        ("new", found.new),
        ("known", found.known),
        ("exempted", [one.finding for one in found.exempted]),
    ):
        for told, finding in zip(view[name], findings, strict=True):
            told["line"] = _line(finding, places)
    malformed = [{"file": one.file, "line": one.line, "detail": one.detail} for one in sources.malformed]
    view["ok"] = view["ok"] and not malformed
    return {**view, "malformed": malformed}


# -- GitHub ----------------------------------------------------------------------------------------------------------------


def _annotations(sources: Sources, found: Review, places: Places, ledger: Path, *, strict: bool) -> Iterator[str]:
    for bad in sources.malformed:
        yield _annotation("error", bad.file, bad.line, "malformed contract", bad.detail)
    levels = {"new": "error", "known": "warning", "exempted": "notice"}
    for standing, one in _standings(found):
        title = f"{one.rule} {_contract(one)} ({standing})"
        detail = f"{one.detail} {one.mend}" if standing == "new" else one.detail
        yield _annotation(levels[standing], one.file, _line(one, places), title, detail)
    for id_ in found.paid:
        level = "error" if strict else "warning"
        yield _annotation(level, ledger.as_posix(), 1, "paid debt", f"{id_} is violated no more: run --update")


def _annotation(level: str, file: str, line: int, title: str, detail: str) -> str:
    """One workflow command. What it carries is escaped as the runner unescapes it; properties more than the message."""
    return f"::{level} file={_property(file)},line={line},title={_property(title)}::{_message(detail)}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
