"""`tenure contracts`: judge the contracts of a repository offline, register them, and look at those of a service.

`check` and `schema` need neither a server nor a database, and import neither.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from app import settings as settings_module
from app.cli import judgements, ledgers, manifests, show
from app.cli.client import Client
from app.cli.failure import AWAY, USAGE, CommandFailed
from app.primitives.contracts.model.effective import Defaults
from app.primitives.contracts.model.manifest import MOST_DEBT, Ledger
from app.primitives.contracts.model.reasons import why_not
from app.primitives.contracts.model.review import Review, review
from app.primitives.contracts.model.schema import manifest_schema

JSON = "Answer as JSON."
ROOT = click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="The repository's top folder; ids begin with the path from there. [default: .]",
)
PATHS = click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
LIST = {
    "type": "type", "schema_version": "version", "state": "state", "violated": "violated", "updated_at": "updated",
    "updated_by": "by",
}  # fmt: skip
DRIFT = {"type": "type", "schema_version": "version", "kind": "kind", "shown": "figures", "detail": "detail"}
REGISTERED = {"contract": "contract", "outcome": "outcome", "violated": "violated"}


@click.group()
def command() -> None:
    """Check, register and list what job types promise; compare it with practice.

    Manifests are files named tenure-contracts.yaml (or .yml, .toml, .json) or *.contracts.yaml; docs/contracts.md tells what
    stands in them.
    """


@command.command()
@PATHS
@ROOT
@click.option("--format", "form", type=click.Choice(["text", "json", "github"]), default="text", help="How to tell it.")
@click.option(
    "--baseline", type=click.Path(dir_okay=False, path_type=Path),
    help=f"The ledger of known debt. [default: {ledgers.DEFAULT_NAME} in the root]",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Fail on a paid debt that is still listed, too.")
@click.option("--update", is_flag=True, help="Write the ledger anew; it may shrink.")
@click.option("--accept-new", metavar="REASON", help="With --update: let the ledger grow, for this reason.")
def check(
    paths: Sequence[Path],
    root: Path,
    form: str,
    baseline: Path | None,
    strict: bool,  # noqa: FBT001 - click passes flags so
    update: bool,  # noqa: FBT001
    accept_new: str | None,
) -> None:
    """Judge every manifest at or below the PATHs (else the root), without a server.

    Exit 2 for a violation that is not in the ledger, a malformed manifest and, strictly, a paid debt that is still listed.
    """
    _require_reason(accept_new, update=update)
    places = list(paths) or [root]
    sources = manifests.read_all(places, root)
    _require_manifests(paths, root, sources)
    ledger_path = baseline or root / ledgers.DEFAULT_NAME
    ledger = ledgers.read(ledger_path, needed=baseline is not None and not update)
    in_scope = _scope(places, root)
    found = _review(sources, ledger, in_scope)
    if update and not sources.malformed:
        ledger = _updated(found, ledger, ledger_path, in_scope, accept_new)
        found = _review(sources, ledger, in_scope)
    judgements.tell(form, sources, found, ledger_path, strict=strict)
    if sources.malformed or not found.ok(strict=strict):
        raise SystemExit(USAGE)


def _require_manifests(paths: Sequence[Path], root: Path, sources: manifests.Sources) -> None:
    """A check that looks at nothing must not pass for one that has found nothing."""
    for name in manifests.misnamed(list(paths) or [root], root):
        show.note(f"tenure: {name} is not read as a manifest: its name must be {manifests.NAMES}")
    if sources.files or sources.malformed:
        return
    if paths:
        raise click.UsageError(f"there is no manifest at or below the paths: a name must be {manifests.NAMES}")
    show.note(f"tenure: there is no manifest below {root}: a name must be {manifests.NAMES}")


@command.command()
def schema() -> None:
    """Print the JSON Schema of manifests, for editors."""
    show.document(manifest_schema())


@command.command()
@PATHS
@ROOT
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document on each line.")
def register(paths: Sequence[Path], root: Path, as_json: bool) -> None:  # noqa: FBT001
    """Register every contract of the manifests with the service; one that breaks rules too.

    Goes on after a contract that is refused, and ends with the exit code of the first refusal. May be repeated.
    """
    sources = manifests.read_all(list(paths) or [root], root)
    if sources.malformed:
        for bad in sources.malformed:
            show.note(f"{bad.file}:{bad.line}: {bad.detail}")
        raise CommandFailed("nothing was registered: mend the manifests first", USAGE)
    rows: list[dict[str, Any]] = []
    first: CommandFailed | None = None
    with Client() as client:
        for _, _, one in sources.contracts():
            row, failure = _register(client, one.type, one.schema_version, one.document())
            if as_json:
                click.echo(json.dumps(row, ensure_ascii=False))
            rows.append(row)
            first = first or failure
            if failure is not None and failure.exit_code == AWAY:
                break
    if not as_json:
        show.table(REGISTERED, [{**row, "violated": _rules(row["answer"])} for row in rows])
    if first is not None:
        show.note(f"tenure: {first.message}")
        raise SystemExit(first.exit_code)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help=JSON)
def list_(as_json: bool) -> None:  # noqa: FBT001
    """List the contracts of the service by type and version."""
    with Client() as client:
        items = client.every("/v1/contracts")
    if as_json:
        show.document({"items": items})
        return
    rows = [{**item, "state": "valid" if item["valid"] else "violated", "violated": _rules(item)} for item in items]
    show.table(LIST, rows)


@command.command()
@click.option("--hours", type=click.IntRange(1, 24), default=24, show_default=True, help="How far to look back.")
@click.option("--json", "as_json", is_flag=True, help=JSON)
def drift(hours: int, as_json: bool) -> None:  # noqa: FBT001
    """Compare what contracts promise with what the service saw."""
    with Client() as client:
        report = client.get("/v1/contracts/drift", window_hours=hours)
    if as_json:
        show.document(report)
        return
    shown = [
        {**item, "shown": [f"{name} {figure:g}" for name, figure in item["figures"].items()]}
        for item in report["items"]
    ]
    show.table(DRIFT, shown)
    show.note(f"{len(shown)} findings in {report['types']} types that were at work; {report['contracts']} contracts.")


def _require_reason(accept_new: str | None, *, update: bool) -> None:
    if accept_new is None:
        return
    if not update:
        raise click.UsageError("--accept-new goes with --update")
    if (fault := why_not(accept_new)) is not None:
        raise click.UsageError(f"--accept-new {fault}")
    if len(accept_new) > 500 or not accept_new.isprintable():
        raise click.UsageError("--accept-new must have at most 500 characters, all of them printable")


def _review(sources: manifests.Sources, ledger: Ledger, in_scope: Callable[[str], bool]) -> Review:
    """By the TENURE_JOBS_* settings of this environment, so that a pipeline can be set as its installation is."""
    defaults = Defaults.of(settings_module.load())
    return review(sources.manifest, ledger, defaults, time.time_ns() // 1000, in_scope=in_scope)


def _scope(places: Sequence[Path], root: Path) -> Callable[[str], bool]:
    """Whether a file lies where this run has looked: a run over a part can neither pay nor forget the debt of the rest."""
    names = [manifests.name_of(place, root) for place in places]
    return lambda file: any(name in (".", file) or file.startswith(f"{name}/") for name in names)


def _updated(found: Review, ledger: Ledger, path: Path, in_scope: Callable[[str], bool], reason: str | None) -> Ledger:
    if found.new and reason is None:
        for one in found.new:
            show.note(f"new: {one.id}")
        raise CommandFailed(
            f"the ledger would grow by {len(found.new)}: mend them, exempt them, or give a reason with --accept-new",
            USAGE,
        )
    if len(found.new) + len(ledger.debt) > MOST_DEBT:
        raise CommandFailed(f"a ledger holds at most {MOST_DEBT} entries: adopt the standard folder by folder", USAGE)
    newer = ledgers.renewed(ledger, [*found.known, *found.new], in_scope, datetime.now(UTC).date(), reason)
    if ledger.debt or newer.debt:
        written = ledgers.write(path, newer)
        show.note(f"{path}: {len(newer.debt)} known{'' if written else ', unchanged'}")
    return newer


def _register(client: Client, type_: str, version: int, document: bytes) -> tuple[dict[str, Any], CommandFailed | None]:
    named = {"contract": f"{type_}@{version}"}
    try:
        answer = client.put(f"/v1/contracts/{type_}/{version}", document)
    except CommandFailed as failure:
        return {**named, "outcome": "failed", "answer": failure.problem}, failure
    outcome = "unchanged" if answer["replayed"] else "registered"
    return {**named, "outcome": outcome, "answer": answer}, None


def _rules(answer: dict[str, Any] | None) -> list[str]:
    return [one["rule"] for one in (answer or {}).get("violations", ())]
