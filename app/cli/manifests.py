"""Manifests on disk: finding them below a folder, and reading YAML, TOML and JSON into the one model that judges.

Whatever is wrong with a file becomes a `Malformed` with the line where it can be told; nothing here raises for content.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from app.cli import yamltext
from app.errors import Refusal
from app.jsontext import parse
from app.primitives.contracts.model.manifest import Declared, Excluded, Manifest

MOST_BYTES = 1024 * 1024
LONGEST_NAME = 400  # it begins ids, which the ledger limits
MOST_SCHEMA_BYTES = 256 * 1024
SUFFIXES = (".yaml", ".yml", ".toml", ".json")
_NAME = re.compile(r"(?:tenure-contracts|.+\.contracts)\.(?:ya?ml|toml|json)", re.DOTALL)
NAMES = "tenure-contracts.yaml, or anything.contracts.yaml; .yml, .toml and .json as well"
_NEARLY = re.compile(
    r"(?:.*tenure.?contracts?|contracts?.?tenure|(?:.+[._-])?contracts?)\.(?:ya?ml|toml|json)", re.IGNORECASE
)
_NOT_OURS = frozenset({
    "node_modules", "bower_components", "vendor", "third_party", "site-packages", "venv", "__pycache__", "dist", "build",
    "target",
})  # fmt: skip
_TOML_TABLE = re.compile(r"\s*\[\[\s*(contracts|excluded)\s*\]\]")
_TOML_LINE = re.compile(r" \(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True)
class Malformed:
    """A file that cannot be judged, and why. `line` from 1."""

    file: str
    line: int
    detail: str


@dataclass(frozen=True, slots=True)
class Source:
    """One manifest as it was read. `lines`: JSON Pointer -> line, as far as the format tells."""

    file: str
    manifest: Manifest
    lines: dict[str, int]

    def line(self, pointer: str) -> int:
        """The line of the nearest thing around `pointer` whose line is known."""
        return line_of(self.lines, pointer)


@dataclass(slots=True)
class Sources:
    """All manifests together."""

    files: list[Source] = field(default_factory=list)
    malformed: list[Malformed] = field(default_factory=list)

    @property
    def manifest(self) -> Manifest:
        """One manifest of everything; each entry says from which file it is."""
        return Manifest.model_construct(
            contracts=[one.model_copy(update={"file": source.file}) for source, _, one in self.contracts()],
            excluded=[one.model_copy(update={"file": source.file}) for source, _, one in self.excluded()],
        )

    def contracts(self) -> Iterator[tuple[Source, str, Declared]]:
        """(source, pointer, contract) of every contract."""
        for source in self.files:
            for index, one in enumerate(source.manifest.contracts):
                yield source, f"/contracts/{index}", one

    def excluded(self) -> Iterator[tuple[Source, str, Excluded]]:
        for source in self.files:
            for index, one in enumerate(source.manifest.excluded):
                yield source, f"/excluded/{index}", one


def read_all(paths: Sequence[Path], root: Path) -> Sources:
    """Read every manifest at or below `paths`. Raises: click.UsageError for a path that is not there, or not in `root`."""
    found = Sources()
    for path in find(paths, root):
        source, faults = read(path, name_of(path, root))
        found.malformed += faults
        if source is not None:
            found.files.append(source)
    found.malformed += _twice(found)
    found.malformed.sort(key=lambda one: (one.file, one.line, one.detail))
    return found


def name_of(path: Path, root: Path) -> str:
    """The path from the root, with slashes; it begins the ids of findings. A link is known by its own name."""
    absolute, top = Path(os.path.abspath(path)), Path(os.path.abspath(root))  # noqa: PTH100 - resolve() follows links
    if not absolute.is_relative_to(top):
        raise click.UsageError(f"{path} is not within the root {root}")
    return absolute.relative_to(top).as_posix()


def find(paths: Iterable[Path], root: Path) -> list[Path]:
    """The manifests at or below these paths, each once, in the order of their names. A file that is named counts by its
    suffix; in folders the name decides. Hidden and vendored folders are skipped, links to folders are not followed.
    """
    found: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            for one in _below(path):
                found.setdefault(name_of(one, root), one)
        elif not path.exists():
            raise click.UsageError(f"there is no {path}")
        elif path.suffix not in SUFFIXES:
            raise click.UsageError(f"{path} is no manifest: its name must end in one of {', '.join(SUFFIXES)}")
        else:
            found.setdefault(name_of(path, root), path)
    return [found[name] for name in sorted(found)]


def misnamed(paths: Iterable[Path], root: Path) -> list[str]:
    """Files below these folders whose names are nearly those of manifests, and are none."""
    near = (one for path in paths if path.is_dir() for one in _files(path) if _NEARLY.fullmatch(one.name))
    return sorted({name_of(one, root) for one in near if not _NAME.fullmatch(one.name)})


def _below(folder: Path) -> Iterator[Path]:
    return (one for one in _files(folder) if _NAME.fullmatch(one.name))


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith(".") and one not in _NOT_OURS)
        yield from (Path(place, one) for one in sorted(files))


# -- reading ---------------------------------------------------------------------------------------------------------------


def read(path: Path, name: str) -> tuple[Source | None, list[Malformed]]:
    """One file."""
    if not name.isprintable():  # it begins ids, and stands on lines of its own
        return None, [
            Malformed(name.encode("unicode_escape", "replace").decode(), 1, "has a name that cannot be printed")
        ]
    if len(name) > LONGEST_NAME:
        return None, [Malformed(name, 1, f"has a path of more than {LONGEST_NAME} characters")]
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as fault:
        return None, [Malformed(name, 1, f"cannot be read: {fault.strerror}")]
    if len(raw) > MOST_BYTES:
        return None, [Malformed(name, 1, f"has more than {MOST_BYTES} bytes")]
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        return None, [Malformed(name, raw.count(b"\n", 0, fault.start) + 1, "is not UTF-8")]
    if not text.strip():
        return None, [Malformed(name, 1, "is empty")]
    return _parsed(path.suffix, text, name)


def _parsed(suffix: str, text: str, name: str) -> tuple[Source | None, list[Malformed]]:
    try:
        body, lines = _as_json(suffix, text)
    except yamltext.Unusable as fault:
        return None, [Malformed(name, fault.line, fault.detail)]
    try:
        manifest = parse(Manifest, body, max_value_bytes=MOST_SCHEMA_BYTES)
    except Refusal as refusal:
        if not refusal.errors:
            return None, [Malformed(name, _line_in(refusal.detail), refusal.detail)]
        places = [(one.pointer.removeprefix("#"), one.detail) for one in refusal.errors]
        return None, [
            Malformed(name, line_of(lines, pointer), f"{pointer or 'the manifest'} {detail}")
            for pointer, detail in places
        ]
    source = Source(name, manifest, lines)
    entries: list[tuple[str, str | None]] = [
        *((f"/contracts/{index}", one.file) for index, one in enumerate(manifest.contracts)),
        *((f"/excluded/{index}", one.file) for index, one in enumerate(manifest.excluded)),
    ]
    own = [
        Malformed(name, source.line(pointer), f"{pointer}/file is not for a file to say")
        for pointer, file in entries
        if file is not None
    ]
    faults = own or _unusable(source)
    return (None if faults else source), faults


def _as_json(suffix: str, text: str) -> tuple[bytes, dict[str, int]]:
    """The file as JSON, and the lines of what is in it. Raises: yamltext.Unusable."""
    if suffix == ".json":
        return text.encode(), yamltext.lines_of_json(text)
    lines: dict[str, int] = {}
    if suffix == ".toml":
        try:
            value = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as fault:
            told = str(fault) if isinstance(fault, tomllib.TOMLDecodeError) else "nested too deep"
            where = _TOML_LINE.search(told)
            raise yamltext.Unusable(int(where[1]) if where else 1, f"is not TOML: {_TOML_LINE.sub('', told)}") from None
        lines = _lines_of_toml(text)
    else:
        value, lines = yamltext.load(text)
    try:
        return json.dumps(value, allow_nan=False, default=_as_text).encode(), lines
    except (ValueError, TypeError, RecursionError):
        raise yamltext.Unusable(1, "holds a value that JSON cannot tell") from None


def _as_text(value: Any) -> str:
    """TOML's dates and times."""
    told: str = value.isoformat()
    return told


def _lines_of_toml(text: str) -> dict[str, int]:
    counts = {"contracts": 0, "excluded": 0}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if found := _TOML_TABLE.match(line):
            lines[f"/{found[1]}/{counts[found[1]]}"] = number
            counts[found[1]] += 1
    return lines


def line_of(lines: dict[str, int], pointer: str) -> int:
    while pointer:
        if pointer in lines:
            return lines[pointer]
        pointer = pointer.rpartition("/")[0]
    return 1


def _line_in(detail: str) -> int:
    found = re.search(r"line (\d+)", detail)
    return int(found[1]) if found else 1


def _unusable(source: Source) -> list[Malformed]:
    """What is well formed and yet cannot be carried out. Only what needs it pays for the import."""
    found = []
    for index, one in enumerate(source.manifest.contracts):
        handler = one.terminal_handler
        if one.payload_schema is None and (handler is None or handler.outbox is None):
            continue
        from app.primitives.contracts.ops.contracts import unusable  # noqa: PLC0415 - slow to import

        for fault in unusable(one):
            pointer = f"/contracts/{index}{fault.pointer.removeprefix('#')}"
            found.append(Malformed(source.file, source.line(pointer), f"{pointer} {fault.detail}"))
    return found


def _twice(found: Sources) -> Iterator[Malformed]:
    """A type and version is declared in one place only, and not where its type is excluded."""
    first: dict[str, tuple[Source, str]] = {}
    for source, pointer, one in found.contracts():
        key = f"{one.type}@{one.schema_version}"
        if key in first:
            yield _again(source, pointer, key, first[key])
        first.setdefault(key, (source, pointer))
    out: dict[str, tuple[Source, str]] = {}
    for source, pointer, left_out in found.excluded():
        if left_out.type in out:
            yield _again(source, pointer, left_out.type, out[left_out.type])
        out.setdefault(left_out.type, (source, pointer))
    for source, pointer, one in found.contracts():
        if one.type in out:
            yield _again(source, pointer, one.type, out[one.type])


def _again(source: Source, pointer: str, what: str, first: tuple[Source, str]) -> Malformed:
    other, place = first
    detail = f"{pointer} {what} stands in {other.file}:{other.line(place)} as well"
    return Malformed(source.file, source.line(pointer), detail)
